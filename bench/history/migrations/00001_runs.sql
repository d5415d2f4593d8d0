-- One SQL for SQLite and Postgres. Times are nanoseconds since 1970, durations nanoseconds.

-- +goose Up
CREATE TABLE runs (
	id TEXT PRIMARY KEY,
	kind TEXT NOT NULL,
	started_at BIGINT NOT NULL,
	saved_at BIGINT NOT NULL,
	elapsed_ns BIGINT NOT NULL,
	status BIGINT NOT NULL,
	outcome TEXT NOT NULL,
	error_kind TEXT NOT NULL,
	error TEXT NOT NULL,
	platform TEXT NOT NULL,
	region TEXT NOT NULL,
	service TEXT NOT NULL,
	revision TEXT NOT NULL,
	instance TEXT NOT NULL,
	cold BOOLEAN NOT NULL,
	request TEXT NOT NULL
);
CREATE INDEX runs_started ON runs (started_at, id);
CREATE INDEX runs_saved ON runs (saved_at);

-- The whole answer, apart from what lists and charts read.
CREATE TABLE reports (
	run_id TEXT PRIMARY KEY,
	body BYTEA NOT NULL -- JSON, gzipped where that is shorter
);

-- What runs are searched by: target, workload, client, revision, kind, outcome, and each label as label.NAME.
CREATE TABLE run_labels (
	run_id TEXT NOT NULL,
	name TEXT NOT NULL,
	value TEXT NOT NULL,
	started_at BIGINT NOT NULL,
	PRIMARY KEY (run_id, name, value)
);
CREATE INDEX run_labels_value ON run_labels (name, value, started_at, run_id);

-- All rows of one name, and the run that measured it last.
CREATE TABLE series (
	id BIGINT PRIMARY KEY,
	name TEXT NOT NULL,
	target TEXT NOT NULL,
	workload TEXT NOT NULL,
	client TEXT NOT NULL,
	latest_at BIGINT NOT NULL,
	latest_run TEXT NOT NULL
);

CREATE TABLE results (
	run_id TEXT NOT NULL,
	position BIGINT NOT NULL, -- in the report
	series_id BIGINT NOT NULL,
	level BIGINT NOT NULL, -- a quarter of the runs at each level are at a higher one
	started_at BIGINT NOT NULL,
	cold BOOLEAN NOT NULL,
	sample BIGINT NOT NULL,
	iterations BIGINT NOT NULL,
	elapsed_ns BIGINT NOT NULL,
	errors BIGINT NOT NULL,
	misses BIGINT NOT NULL,
	mismatches BIGINT NOT NULL,
	ns_per_op DOUBLE PRECISION,
	ops_per_sec DOUBLE PRECISION,
	min_ns BIGINT,
	mean_ns BIGINT,
	stddev_ns BIGINT,
	p50_ns BIGINT,
	p90_ns BIGINT,
	p95_ns BIGINT,
	p99_ns BIGINT,
	p99_9_ns BIGINT,
	max_ns BIGINT,
	connect_ns BIGINT,
	PRIMARY KEY (run_id, position)
);
CREATE INDEX results_series ON results (series_id, level, started_at);

CREATE TABLE histograms (
	run_id TEXT NOT NULL,
	position BIGINT NOT NULL,
	data TEXT NOT NULL, -- HdrHistogram V2, compressed, base64
	PRIMARY KEY (run_id, position)
);
