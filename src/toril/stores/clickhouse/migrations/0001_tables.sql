-- Every statement can be run again: two processes may start at once. TenantId is first in every ORDER BY.
-- Rows that are inserted again are one row, because all that says where a row lies never changes for it.
-- Parts are on the disk when an insert returns, and so are merged ones before their sources go.

CREATE TABLE IF NOT EXISTS {database}.event_log
(
    TenantId      String,
    AggregateType LowCardinality(String),
    AggregateId   String,
    Version       UInt64,
    EventId       String,
    EventType     LowCardinality(String),
    RecordedAt    DateTime64(9, 'UTC'),
    Body          String CODEC(ZSTD(3)),
    INDEX by_event EventId TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_time RecordedAt TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(RecordedAt)
ORDER BY (TenantId, AggregateType, AggregateId, Version)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, min_rows_to_fsync_after_merge = 1, old_parts_lifetime = 30;

CREATE TABLE IF NOT EXISTS {database}.frozen_aggregates
(
    TenantId      String,
    AggregateType LowCardinality(String),
    AggregateId   String,
    Epoch         Int64,
    Changes       UInt64,
    Body          String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree(Changes)
ORDER BY (TenantId, AggregateType, AggregateId)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, min_rows_to_fsync_after_merge = 1, old_parts_lifetime = 30;

-- Of rows with one RecordId the one with the greatest Precedence counts: that of the smallest Version.
CREATE TABLE IF NOT EXISTS {database}.stored_spans
(
    TenantId           String,
    TraceId            String,
    RecordId           String,
    Version            UInt64,
    Precedence         UInt64,
    RecordedAt         DateTime64(9, 'UTC'),
    SpanId             String,
    ParentSpanId       Nullable(String),
    SpanName           String,
    SpanKind           UInt8,
    StartTime          DateTime64(9, 'UTC'),
    EndTime            DateTime64(9, 'UTC'),
    Duration           Int64,
    StatusCode         UInt8,
    StatusMessage      String,
    ServiceName        LowCardinality(String),
    ScopeName          LowCardinality(String),
    ScopeVersion       LowCardinality(String),
    SpanAttributes     Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    AiKind             LowCardinality(String),
    Provider           LowCardinality(String),
    Model              LowCardinality(String),
    InputTokens        Nullable(Int64),
    OutputTokens       Nullable(Int64),
    FirstToken         Nullable(Int64),
    Cost               Nullable(Int64),
    Body               String CODEC(ZSTD(3)),
    INDEX by_trace TraceId TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_span SpanId TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_start StartTime TYPE minmax GRANULARITY 1,
    INDEX by_name mapKeys(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(Precedence)
PARTITION BY toYYYYMM(RecordedAt)
ORDER BY (TenantId, TraceId, RecordId)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, min_rows_to_fsync_after_merge = 1, old_parts_lifetime = 30;

-- Text that no span says is ''. Sums have 128 bits: 2**64 spans of 2**63 each fit. Money is in nano-USD, durations are in nanoseconds.
CREATE TABLE IF NOT EXISTS {database}.trace_summaries
(
    TenantId         String,
    TraceId          String,
    Version          UInt64,
    TraceName        String,
    RootSpanId       String,
    HasRoot          Bool,
    ServiceName      LowCardinality(String),
    Spans            Int64,
    StartedAt        Nullable(DateTime64(9, 'UTC')),
    EndedAt          Nullable(DateTime64(9, 'UTC')),
    Duration         Nullable(Int64),
    FirstToken       Nullable(Int64),
    LastToken        Nullable(Int64),
    InputTokens      Nullable(Int128),
    OutputTokens     Nullable(Int128),
    CacheReadTokens  Nullable(Int128),
    CacheWriteTokens Nullable(Int128),
    ReasoningTokens  Nullable(Int128),
    TokensEstimated  Bool,
    TokensPerSecond  Nullable(Int128),
    Models           Array(LowCardinality(String)),
    Cost             Nullable(Int128),
    Failed           Bool,
    Ok               Bool,
    Errors           Int64,
    ErrorMessage     String,
    Conversation     String,
    UserId           String,
    Customer         String,
    Labels           Array(LowCardinality(String)),
    Topic            LowCardinality(String),
    Subtopic         LowCardinality(String),
    Annotated        Bool,
    Attributes       Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    CreatedAt        Nullable(DateTime64(9, 'UTC')),
    UpdatedAt        Nullable(DateTime64(9, 'UTC')),
    Body             String CODEC(ZSTD(3)),
    INDEX by_trace TraceId TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_start StartedAt TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(Version)
ORDER BY (TenantId, TraceId)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, min_rows_to_fsync_after_merge = 1, old_parts_lifetime = 30;

-- For people: each span once, and each trace as it was last.
CREATE VIEW IF NOT EXISTS {database}.spans AS
SELECT * EXCEPT (Precedence) FROM {database}.stored_spans FINAL;

CREATE VIEW IF NOT EXISTS {database}.traces AS
SELECT * FROM {database}.trace_summaries FINAL;
