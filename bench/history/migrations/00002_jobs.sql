-- +goose Up
ALTER TABLE runs ADD COLUMN idempotency_key TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN plan TEXT NOT NULL DEFAULT '';
CREATE INDEX runs_key ON runs (idempotency_key, started_at) WHERE idempotency_key <> '';

-- What each task of a job measured.
CREATE TABLE parts (
	execution TEXT NOT NULL,
	task BIGINT NOT NULL,
	attempt BIGINT NOT NULL,
	saved_at BIGINT NOT NULL,
	body BYTEA NOT NULL,
	PRIMARY KEY (execution, task)
);
CREATE INDEX parts_saved ON parts (saved_at);

-- The tasks that are ready to start.
CREATE TABLE arrivals (
	execution TEXT NOT NULL,
	task BIGINT NOT NULL,
	attempt BIGINT NOT NULL,
	arrived_at BIGINT NOT NULL,
	PRIMARY KEY (execution, task)
);
CREATE INDEX arrivals_arrived ON arrivals (arrived_at);
