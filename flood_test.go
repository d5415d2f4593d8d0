package main

import (
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestFlood: of 1,000 requests at once one runs and the others are told so at once; memory stays small.
func TestFlood(t *testing.T) {
	const requests = 1000
	var (
		p      = listen(t, build(t))
		client = &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: requests}}
		ok     atomic.Int64
		busy   atomic.Int64
		latest atomic.Int64 // of the refusals, in nanoseconds
		wait   sync.WaitGroup
	)
	defer client.CloseIdleConnections()
	began := time.Now()
	for range requests {
		wait.Go(func() {
			resp, err := client.Get(p.base + "/bench/map/get?benchtime=3s")
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			took := int64(time.Since(began))
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Error(err)
			}
			switch after, err := strconv.Atoi(resp.Header.Get("Retry-After")); {
			case resp.StatusCode == http.StatusOK:
				ok.Add(1)
			case resp.StatusCode == http.StatusTooManyRequests && err == nil && after >= 1 && after <= 10:
				busy.Add(1)
				for {
					seen := latest.Load()
					if took <= seen || latest.CompareAndSwap(seen, took) {
						break
					}
				}
			default:
				t.Errorf("status %d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
			}
		})
	}
	wait.Wait()
	if ok.Load() != 1 || busy.Load() != requests-1 {
		t.Errorf("%d ran and %d were refused", ok.Load(), busy.Load())
	}
	t.Logf("the last refusal came after %v", time.Duration(latest.Load()))
	if peak := statusBytes(t, p.cmd.Process.Pid, "VmHWM"); peak > 100e6 {
		t.Errorf("%d bytes were resident", peak)
	} else {
		t.Logf("%d MB were resident", peak>>20)
	}
	p.terminate(t)
}
