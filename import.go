package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"nsop/bench/history"
	"nsop/bench/imports"
	"nsop/handlers"
)

// importFiles stores what files hold, each whole or not at all, and prints the runs that it stored. The first file that
// is broken ends it: what the ones before held stays stored, and is printed.
func importFiles(ctx context.Context, config handlers.Config, files []string, stdout io.Writer) error {
	service := handlers.New(config)
	terminal := isTerminal(stdout)
	var stored []*history.Run
	var err error
	for _, file := range files {
		var runs []*history.Run
		if runs, err = importFile(ctx, service, file); err != nil {
			err = fmt.Errorf("import %s: %w", file, err)
			break
		}
		stored = append(stored, runs...)
		for _, r := range runs {
			if terminal {
				fmt.Fprintf(stdout, "%s: run %s, %d rows\n", file, r.ID, len(r.Rows))
			}
		}
	}
	if len(stored) > 0 && !terminal {
		if werr := handlers.WriteRuns(stdout, stored, ""); werr != nil {
			err = errors.Join(err, fmt.Errorf("write: %w", werr))
		}
	}
	return err
}

func importFile(ctx context.Context, service *handlers.Service, file string) ([]*history.Run, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, handlers.ImportLimit+1))
	if err != nil {
		return nil, cause(err)
	}
	if len(data) > handlers.ImportLimit {
		return nil, fmt.Errorf("it is over %d bytes", handlers.ImportLimit)
	}
	return service.Import(ctx, bytes.NewReader(data), imports.Options{})
}

// cause is what is wrong with a file, without its name.
func cause(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return err
}
