//go:build !linux

package bench

// newSleeper takes Go's timers, which elsewhere are as precise as the system's.
func newSleeper() sleeper {
	s := timers()
	s.precise = true
	return s
}
