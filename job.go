package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"nsop/handlers"
)

// jobVariables are how platforms tell a task which one it is: index, count and name of the run, and the attempt, which
// Kubernetes does not number.
var jobVariables = []struct{ index, count, name, attempt string }{
	{"CLOUD_RUN_TASK_INDEX", "CLOUD_RUN_TASK_COUNT", "CLOUD_RUN_EXECUTION", "CLOUD_RUN_TASK_ATTEMPT"},
	{"JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", "JOB_NAME", ""},
}

// maxTasks is what Cloud Run has at most.
const maxTasks = 10_000

// configureJob reads which task this process is. Without any of the variables it is the only task of a run of its own.
// Its errors are *usageError.
func configureJob(getenv func(string) string) (*handlers.Job, error) {
	for _, v := range jobVariables {
		names := []string{v.index, v.count, v.name, v.attempt}
		if !slices.ContainsFunc(names[:3], func(name string) bool { return getenv(name) != "" }) {
			continue
		}
		job := &handlers.Job{Execution: getenv(v.name)}
		for _, n := range []struct {
			name     string
			field    *int
			from, to int
		}{{v.count, &job.Tasks, 1, maxTasks}, {v.index, &job.Task, 0, maxTasks - 1}, {v.attempt, &job.Attempt, 0, 1000}} {
			text := ""
			if n.name != "" {
				text = getenv(n.name)
			}
			if text == "" && n.field == &job.Attempt {
				continue
			}
			var err error
			if *n.field, err = strconv.Atoi(text); err != nil || *n.field < n.from || *n.field > n.to {
				return nil, &usageError{fmt.Sprintf("%s: %q is no whole number from %d to %d: a task is told by %s, %s and %s", n.name, text, n.from, n.to, v.index, v.count, v.name)}
			}
		}
		switch {
		case job.Task >= job.Tasks:
			return nil, &usageError{fmt.Sprintf("%s: %d is not below %s, which is %d", v.index, job.Task, v.count, job.Tasks)}
		case !runName(job.Execution):
			return nil, &usageError{fmt.Sprintf("%s: %q is no name of a run: want 1 to 100 letters, digits, - _ and ., alike for all tasks of a run and for no others", v.name, job.Execution)}
		}
		return job, nil
	}
	return &handlers.Job{Execution: uuid.Must(uuid.NewV7()).String(), Tasks: 1}, nil
}

// runName tells whether name is one that a run can have.
func runName(name string) bool {
	return name != "" && len(name) <= 100 && strings.Trim(name, ".") != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	})
}

// checkJob refuses what tasks can't share: a path that is no plan of rows, and a history that each has for itself.
func checkJob(job *handlers.Job, path string, getenv func(string) string, serverless bool) error {
	if !strings.HasPrefix(path, "/bench/") && !strings.HasPrefix(path, "/suites/") {
		return &usageError{fmt.Sprintf("job %s: want a path that begins with /bench/ or /suites/", path)}
	}
	history := getenv("HISTORY_URL")
	if job.Tasks > 1 && (history == "" || serverless && strings.HasPrefix(history, "sqlite:")) {
		return &usageError{"HISTORY_URL: the tasks of a job put their parts together in the history: want one that all of them reach, " +
			"postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE, or on a single machine sqlite:PATH"}
	}
	return nil
}
