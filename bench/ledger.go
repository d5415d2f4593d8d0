package bench

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ledger removes what killed runs left behind and, where this run writes keys without a TTL, notes which, so that the
// next run could do the same. end removes them and takes the note back.
func (r *runner) ledger(ctx context.Context, session Session, part Part) (end func(), err error) {
	end = func() {}
	registry, ok := session.(Registry)
	if !ok {
		return end, nil
	}
	notes, err := registry.Registered(ctx)
	if err != nil {
		return end, fmt.Errorf("read what earlier runs left: %w", err)
	}
	for _, run := range slices.Sorted(maps.Keys(notes)) {
		if run == r.keysOf() {
			continue // another task of this job noted it, and may have been killed
		}
		if err := removeNoted(ctx, session, registry, run, notes[run]); err != nil {
			r.report.Warnings = append(r.report.Warnings, fmt.Sprintf("what run %s left is still there: %v", run, err))
		}
	}
	note := noteOf(part.Rows)
	if note == "" {
		return end, nil
	}
	if err := registry.Register(ctx, r.keysOf(), note); err != nil {
		return end, fmt.Errorf("note the run's keys: %w", err)
	}
	return func() {
		alone, err := r.last(ctx, part)
		if err != nil {
			r.report.Warnings = append(r.report.Warnings, fmt.Sprintf("keys were left behind, the next run removes them: %v", err))
		}
		if err != nil || !alone {
			return
		}
		bound := 30 * time.Second
		if ctx.Err() != nil {
			bound = time.Second
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
		defer cancel()
		if err := removeNoted(ctx, session, registry, r.keysOf(), note); err != nil {
			r.report.Warnings = append(r.report.Warnings, fmt.Sprintf("keys were left behind, the next run removes them: %v", err))
		}
	}, nil
}

// noteOf lists the rows whose keys have no TTL as workload:keyspace, each once.
func noteOf(rows []Row) string {
	var entries []string
	for _, r := range rows {
		if r.Workload.Keys == nil || r.Flavor != "compatible" && !r.Workload.Forever {
			continue
		}
		if e := fmt.Sprintf("%s:%d:%s", r.Workload.Name, r.Keyspace, r.Flavor); !slices.Contains(entries, e) {
			entries = append(entries, e)
		}
	}
	return strings.Join(entries, " ")
}

// removeNoted removes the keys of a note and then the note.
func removeNoted(ctx context.Context, session Session, registry Registry, run, note string) error {
	var errs []error
	for entry := range strings.FieldsSeq(note) {
		keys, err := notedKeys(run, entry)
		if err == nil {
			err = session.Remove(ctx, keys)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return registry.Unregister(ctx, run)
}

// notedKeys are the keys that an entry of a note stands for.
func notedKeys(run, entry string) (iter.Seq[string], error) {
	parts := strings.Split(entry, ":")
	if len(parts) != 3 {
		return nil, fmt.Errorf("note %q: want workload:keyspace:flavor", entry)
	}
	w := findWorkload(parts[0])
	keyspace, err := strconv.Atoi(parts[1])
	if w == nil || w.Keys == nil || err != nil || keyspace < 1 {
		return nil, fmt.Errorf("note %q: no such workload or keyspace", entry)
	}
	p := &Params{Run: run, Compatible: parts[2] == "compatible"}
	p.Keys = NewKeys(p.Key("key:"), keyspace)
	return w.Keys(p), nil
}
