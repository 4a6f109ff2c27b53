// BullMQ for Node, as it is installed for the conformance tests. See player.py: the same in JavaScript.
import { writeSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

const require = createRequire(new URL('../../../tests/conformance/node/package.json', import.meta.url));
const { Queue, Worker } = require('bullmq');

const QUEUE = '{bench}';
const FILLING = 'x'.repeat(70);

const micros = () => Number(process.hrtime.bigint() / 1000n);
const seconds = () => Number(process.hrtime.bigint()) / 1e9;
const payload = (n) => ({ n, sent: micros(), text: FILLING });
const tell = (answer) => writeSync(1, JSON.stringify(answer) + '\n');

function cpu() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

let connection, queue, worker;
let seen = () => {};
let ended = () => {};

const commands = {
  async open({ url, role }) {
    const { hostname: host, port } = new URL(url);
    connection = { host, port: Number(port), maxRetriesPerRequest: null };
    if (role === 'producer') {
      queue = new Queue(QUEUE, { connection });
      await queue.waitUntilReady();
    }
    return {};
  },

  async add({ count }) {
    const began = seconds();
    for (let n = 0; n < count; n++) {
      await queue.add('job', payload(n));
    }
    return { seconds: seconds() - began };
  },

  async bulk({ count, batch }) {
    const jobs = Array.from({ length: count }, (_, n) => ({ name: 'job', data: payload(n) }));
    const began = seconds();
    for (let first = 0; first < count; first += batch || count) {
      await queue.addBulk(jobs.slice(first, first + (batch || count)));
    }
    return { seconds: seconds() - began };
  },

  async drip({ count, gap }) {
    let due = seconds();
    for (let n = 0; n < count; n++) {
      due += gap;
      await sleep(Math.max(0, (due - seconds()) * 1000));
      await queue.add('job', payload(n));
    }
    return {};
  },

  async work({ concurrency, skip, count }) {
    let done = 0;
    let at, used;
    const over = new Promise((resolve) => {
      ended = () => {
        done += 1;
        if (done === skip) {
          tell({ began: true });
          at = seconds();
          used = cpu();
        } else if (done === skip + count) {
          resolve({ seconds: seconds() - at, cpu: cpu() - used });
        }
      };
    });
    worker = new Worker(QUEUE, async (job) => { seen(job.data); }, { connection, concurrency });
    worker.on('completed', () => ended());
    return over;
  },

  async listen({ count }) {
    const times = [];
    const over = new Promise((resolve) => {
      seen = (data) => {
        times.push((micros() - data.sent) / 1000);
        if (times.length === count) {
          resolve({ times });
        }
      };
    });
    ended = () => {};
    tell({ began: true });
    return over;
  },
};

const lines = createInterface({ input: process.stdin });
lines.on('line', async (line) => {
  const { do: name, ...args } = JSON.parse(line);
  tell(await commands[name](args));
});
lines.on('close', () => process.exit(0));
