package handlers

import (
	"context"
	"net/http"
	"sync"
	"time"

	"nsop/bench"
)

// health says that the process is up.
func (s *Service) health(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	return writeJSON(w, map[string]string{"status": "ok"})
}

// readyTimeout bounds the dials of one readiness check.
const readyTimeout = 2 * time.Second

// readiness remembers which targets have been reached: once is enough, a store that is down later is a finding, not a
// reason to take the service away.
type readiness struct {
	mu      sync.Mutex // one check at a time
	reached map[string]bool
}

// readyz tries every configured target that has not been reached so far, all at once. Whoever may not call the rest is
// not told where a target is.
func (s *Service) readyz(w http.ResponseWriter, r *http.Request) error {
	if s.runs.drains() {
		return errShutdown
	}
	s.ready.mu.Lock()
	defer s.ready.mu.Unlock()
	if err := r.Context().Err(); err != nil {
		return err // it left while it waited for its turn
	}
	if s.ready.reached == nil {
		s.ready.reached = map[string]bool{}
	}
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	errs := make([]error, len(s.Targets))
	var wait sync.WaitGroup
	for i, t := range s.Targets {
		if t.Embedded || s.ready.reached[t.Name] {
			continue
		}
		wait.Go(func() { errs[i] = reach(ctx, t) })
	}
	wait.Wait()
	var missing []string
	for i, t := range s.Targets {
		if errs[i] != nil {
			why := bench.Kind(errs[i])
			if s.Auth.check(r) == nil {
				why = errs[i].Error()
			}
			missing = append(missing, t.Name+": "+why)
			continue
		}
		s.ready.reached[t.Name] = true
	}
	if missing != nil {
		return &notReadyError{missing}
	}
	w.Header().Set("Content-Type", "application/json")
	return writeJSON(w, map[string]string{"status": "ready"})
}

func reach(ctx context.Context, t *bench.Target) error {
	session, err := t.Connect(ctx, readyTimeout)
	if err != nil {
		return err
	}
	return session.Close()
}

// warmup does what the first request would otherwise wait for: it asks where the service runs.
func (s *Service) warmup(w http.ResponseWriter, r *http.Request) error {
	s.Vantage.Info(r.Context())
	return s.health(w, r)
}
