//go:build !unix

package vantage

import "time"

// CPUTime returns false: only Unix says how much CPU time a process has used in one cheap call.
func CPUTime() (time.Duration, bool) { return 0, false }
