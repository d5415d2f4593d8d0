package storetest

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A MemcachedServer is a memcached of a test's own. It ends with the test.
type MemcachedServer struct {
	Addr string // 127.0.0.1:port
	PID  int

	process *os.Process
	done    chan struct{} // closed once the process has been waited for
}

// Memcached starts a memcached with args after its own, on a port of 127.0.0.1 that was free. It returns once the server
// answers; a machine without a memcached fails the test.
func Memcached(t testing.TB, args ...string) *MemcachedServer {
	t.Helper()
	bin, err := exec.LookPath("memcached")
	if err != nil {
		t.Fatalf("this test needs memcached: %v", err)
	}
	out := &bytes.Buffer{}
	// Another process may take the port between the look and the start; then the server says so and ends.
	for range 10 {
		out.Reset()
		port := strconv.Itoa(freePort(t))
		own := []string{"-l", "127.0.0.1", "-p", port, "-U", "0", "-t", "2"}
		if os.Geteuid() == 0 {
			own = append(own, "-u", "root") // it wants to be told
		}
		cmd := exec.Command(bin, append(own, args...)...)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatalf("start memcached: %v", err)
		}
		s := &MemcachedServer{Addr: net.JoinHostPort("127.0.0.1", port), PID: cmd.Process.Pid, process: cmd.Process, done: make(chan struct{})}
		go func() {
			cmd.Wait()
			close(s.done)
		}()
		t.Cleanup(func() {
			s.process.Kill()
			<-s.done
		})
		if s.starts() {
			return s
		}
		s.process.Kill()
		<-s.done
	}
	t.Fatalf("memcached does not start: %s", out)
	return nil
}

// starts waits for our own server to answer, and reports whether it did.
func (s *MemcachedServer) starts() bool {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		select {
		case <-s.done:
			return false
		default:
		}
		// Another server may have taken the port.
		if lines, err := s.ask("stats"); err == nil {
			return strings.Contains(lines, fmt.Sprintf("STAT pid %d\r\n", s.PID))
		}
	}
	return false
}

// ask sends one command on a connection of its own and returns all lines up to END.
func (s *MemcachedServer) ask(command string) (string, error) {
	c, err := net.DialTimeout("tcp", s.Addr, 5*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Write([]byte(command + "\r\n")); err != nil {
		return "", err
	}
	var lines strings.Builder
	for r := bufio.NewReader(c); ; {
		line, err := r.ReadString('\n')
		if err != nil || line == "END\r\n" {
			return lines.String(), err
		}
		lines.WriteString(line)
	}
}

// Stats returns the server's general statistics.
func (s *MemcachedServer) Stats(t testing.TB) map[string]string {
	t.Helper()
	lines, err := s.ask("stats")
	if err != nil {
		t.Fatalf("stats: %v", err)
	}
	stats := map[string]string{}
	for line := range strings.Lines(lines) {
		if fields := strings.Fields(line); len(fields) == 3 {
			stats[fields[1]] = fields[2]
		}
	}
	return stats
}

// Pause stops the process, which then answers nothing while its connections stay open. It returns once every thread has
// stopped, which takes those on other processors a moment.
func (s *MemcachedServer) Pause(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGSTOP)
	for deadline := time.Now().Add(20 * time.Second); !s.stopped(t); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("memcached does not stop")
		}
	}
}

// stopped reports whether all threads are in state T of proc(5).
func (s *MemcachedServer) stopped(t testing.TB) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.PID))
	if err != nil || len(threads) == 0 {
		t.Fatalf("find the threads of memcached: %v", err)
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if err == nil && !bytes.Contains(stat, []byte(") T ")) {
			return false
		}
	}
	return true
}

// Resume lets a paused process go on.
func (s *MemcachedServer) Resume(t testing.TB) { s.signal(t, syscall.SIGCONT) }

// Kill ends the process and waits for it.
func (s *MemcachedServer) Kill(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGKILL)
	<-s.done
}

func (s *MemcachedServer) signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := s.process.Signal(sig); err != nil {
		t.Fatalf("signal memcached: %v", err)
	}
}
