//go:build unix

package vantage

import (
	"syscall"
	"time"
)

// CPUTime returns the user and system CPU time that this process has used, over all its threads; false if the system
// does not say. gVisor counts in steps of 10 ms.
func CPUTime() (time.Duration, bool) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, false
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), true
}
