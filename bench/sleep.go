package bench

import "time"

// A sleeper suspends the goroutine it belongs to.
type sleeper struct {
	sleep   func(time.Duration)
	close   func()
	precise bool // wakes it within some 0.1 ms
}

// timers sleeps on Go's timers. On Linux they are late by up to 1 ms, on average by half of it, since the runtime waits
// for the network and for timers in one call that counts in milliseconds.
func timers() sleeper { return sleeper{time.Sleep, func() {}, false} }
