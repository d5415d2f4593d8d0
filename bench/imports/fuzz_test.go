package imports

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"nsop/bench"
)

// fuzzReader checks what every reader keeps: it ends with an *Error that has a line of the file, or with reports that
// each format can write.
func fuzzReader(f *testing.F, pattern string, read func(data []byte, o Options) ([]*bench.Report, error)) {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		f.Fatalf("%s: %v, %d files", pattern, err, len(files))
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		if len(text) < 20_000 {
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		reports, err := read(data, Options{})
		if err != nil {
			var where *Error
			if !errors.As(err, &where) || where.Line < 1 || where.Line > 1+bytes.Count(data, []byte("\n")) || reports != nil {
				t.Fatalf("%v of %d lines, %d reports", err, 1+bytes.Count(data, []byte("\n")), len(reports))
			}
			return
		}
		for _, r := range reports {
			everyFormat(t, r)
		}
	})
}

func FuzzRedisCSV(f *testing.F)    { fuzzReader(f, "testdata/redis-*.csv", one(readRedisCSV)) }
func FuzzRedisText(f *testing.F)   { fuzzReader(f, "testdata/*redis*.txt", one(readRedisText)) }
func FuzzPgbench(f *testing.F)     { fuzzReader(f, "testdata/pgbench-*.txt", one(readPgbench)) }
func FuzzGoBenchmark(f *testing.F) { fuzzReader(f, "testdata/go.txt", one(readGoBenchmark)) }
func FuzzMemtier(f *testing.F)     { fuzzReader(f, "testdata/memtier*.json", readJSON) }
func FuzzGoJSON(f *testing.F)      { fuzzReader(f, "testdata/go.json", readJSON) }
func FuzzOwnJSON(f *testing.F)     { fuzzReader(f, "../testdata/*.json", readJSON) }

// FuzzRead lets the content choose the reader.
func FuzzRead(f *testing.F) {
	fuzzReader(f, "testdata/*.[ctj]*", func(data []byte, o Options) ([]*bench.Report, error) { return Read(bytes.NewReader(data), o) })
}
