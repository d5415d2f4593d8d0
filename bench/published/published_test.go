package published

import (
	"bytes"
	"encoding/csv"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"nsop/bench"
	"nsop/bench/imports"
)

// Every line of every file is a result, whose figures are those of the file.
func TestReport(t *testing.T) {
	paths, err := filepath.Glob("*.csv")
	if err != nil || len(paths) != len(Names()) {
		t.Fatalf("%v: %d files of %d comparisons", err, len(paths), len(Names()))
	}
	for _, name := range Names() {
		f, err := files.Open(name + ".csv")
		if err != nil {
			t.Fatal(err)
		}
		records, err := csv.NewReader(f).ReadAll()
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		r, err := Report(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Results) != len(records)-1 || r.Imported != "published:"+name {
			t.Fatalf("%s: %d results of %d lines, imported %s", name, len(r.Results), len(records)-1, r.Imported)
		}
		seen := map[string]int{}
		for i, res := range r.Results {
			record := map[string]string{}
			for c, column := range records[0] {
				record[column] = records[i+1][c]
			}
			if res.Labels["environment"] != record["environment"] || res.NSPerOp == nil || res.OpsPerSec == nil || res.Workload == "" || res.Client == "" {
				t.Errorf("%s line %d: %+v", name, i+2, res)
			}
			if seen[res.Name]++; res.Sample != seen[res.Name] {
				t.Errorf("%s: sample %d of %s is %d", name, seen[res.Name], res.Name, res.Sample)
			}
			if w := res.Workload; name != "limit" && !slices.ContainsFunc(bench.Workloads, func(known bench.Workload) bool { return known.Name == w }) {
				t.Errorf("%s: no workload %s", name, w)
			}
			parts := strings.Split(res.Name, "/")
			if parts[1] != "target="+res.Target || parts[2] != "client="+res.Client {
				t.Errorf("%s: %s of %s through %s", name, res.Name, res.Target, res.Client)
			}
		}
		for _, f := range bench.Formats {
			err := f.Encode(&bytes.Buffer{}, r, bench.EncodeOptions{})
			if unsupported := (*bench.UnsupportedError)(nil); f.Name == "svg" && errors.As(err, &unsupported) {
				continue // no latencies were published
			}
			if err != nil {
				t.Errorf("%s as %s: %v", name, f.Name, err)
			}
		}
		var b bytes.Buffer
		if err := bench.Formats[0].Encode(&b, r, bench.EncodeOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := imports.Read(&b, imports.Options{}); err != nil {
			t.Errorf("%s does not read back: %v", name, err)
		}
	}
}

func TestFigures(t *testing.T) {
	for name, want := range map[string][]string{
		"clients":     {"Set/target=app-engine-standard-go113-vpc-connector-memorystore-tokyo/client=redigo 3: 1076 1101032 908.2"},
		"concurrency": {"Lrange500/target=memorystore-1gb-redis-3.2/client=redis-benchmark/concurrency=100 1: 500", "PingMbulk/target=docker-on-mac/client=redis-benchmark/concurrency=1 1: 500 406957 2457.26"},
		"payload":     {"Set/target=ec2-m1.large/client=redis-benchmark/concurrency=100/size=1000/keyspace=100000 1: 10000 32700 30581.04"},
		"limit":       {"Limit/target=ec2-m1.large/client=redis-benchmark 1: 0 27400 36497"},
		"pgbench":     {"Tpcb/target=f1-micro-boot-disk/client=pgbench/concurrency=100/scale=1/protocol=simple 4: 10000 12029949 83.125874"},
		"stores":      {"Roundtrip/target=vm-2-cores-8gb/client=redis/concurrency=1/keyspace=100000 1: 100000 53781 18593.8"},
	} {
		r, err := Report(name)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, res := range r.Results {
			got = append(got, res.Name+" "+itoa(int64(res.Sample))+": "+itoa(res.Iterations)+" "+res.NSPerOp.String()+" "+res.OpsPerSec.String())
		}
		for _, w := range want {
			if !slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, w) }) {
				t.Errorf("%s: no %s in\n%s", name, w, strings.Join(got[:min(len(got), 20)], "\n"))
			}
		}
	}
}

func itoa(n int64) string { return bench.Figure(n).String() }

func TestUnknown(t *testing.T) {
	var missing *bench.NotFoundError
	if _, err := Report("nosuch"); !errors.As(err, &missing) || len(missing.Allowed) != len(Names()) {
		t.Errorf("got %v", err)
	}
}
