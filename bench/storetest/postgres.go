package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"nsop/bench"
)

// PostgresOptions are how a server differs from one that trusts everybody and flushes nothing.
type PostgresOptions struct {
	Password string   // of the superuser postgres; every role then needs one (SCRAM)
	Fsync    bool     // flush what is committed
	TLS      bool     // with a certificate for 127.0.0.1 and localhost; connections without TLS are refused
	Settings []string // name=value
	Disk     int      // bytes of a file system that holds the data, but not the log; 0: no limit
}

// A PostgresServer is a Postgres of a test's own, superuser postgres, database postgres. It ends with the test.
type PostgresServer struct {
	Addr string // 127.0.0.1:port
	Port int
	PID  int    // of the postmaster
	CA   string // file of the certificate that signed the server's, "" without TLS
	// Limited tells that its data has a file system of the size asked for, which not everyone may mount.
	Limited bool

	o    PostgresOptions
	dir  string
	out  *bytes.Buffer
	done chan struct{} // closed once the postmaster has been waited for
}

// Postgres starts a server on a port of 127.0.0.1 that was free. It returns once the server answers; a machine without
// Postgres fails the test.
func Postgres(t testing.TB, o PostgresOptions) *PostgresServer {
	t.Helper()
	s := &PostgresServer{o: o}
	s.dir, s.Limited = postgresDir(t, o.Disk)
	args := []string{"-D", filepath.Join(s.dir, "data"), "-X", filepath.Join(s.dir, "log"), "-U", "postgres", "--no-sync", "--locale=C", "-E", "UTF8", "-A", "trust"}
	if o.Password != "" {
		file := s.write(t, "password", []byte(o.Password+"\n"))
		args = append(args[:len(args)-1], "scram-sha-256", "--pwfile", file)
	}
	s.command(t, "initdb", args...)
	if o.TLS {
		ca, cert, key := certificates(t)
		s.write(t, "cert.pem", cert)
		s.write(t, "key.pem", key)
		s.CA = s.write(t, "ca.pem", ca)
		method := "trust"
		if o.Password != "" {
			method = "scram-sha-256"
		}
		s.write(t, "data/pg_hba.conf", []byte("hostssl all all 127.0.0.1/32 "+method+"\n"))
	}
	s.boot(t)
	return s
}

// Standby starts a server that follows primary and takes no writes.
func Standby(t testing.TB, primary *PostgresServer) *PostgresServer {
	t.Helper()
	s := &PostgresServer{}
	s.dir, _ = postgresDir(t, 0)
	s.command(t, "pg_basebackup", "-D", filepath.Join(s.dir, "data"), "-R", "--no-sync", "-c", "fast", "-h", "127.0.0.1", "-p", strconv.Itoa(primary.Port), "-U", "postgres")
	s.boot(t)
	return s
}

// postgresDir returns a directory that the server's user owns, data in it too.
func postgresDir(t testing.TB, disk int) (dir string, limited bool) {
	t.Helper()
	dir, err := os.MkdirTemp("", "storetest-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if disk > 0 && syscall.Mount("tmpfs", data, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", disk)) == nil {
		limited = true
		t.Cleanup(func() { syscall.Unmount(data, syscall.MNT_DETACH) })
	}
	if uid, gid, ok := postgresUser(t); ok {
		if err := errors.Join(os.Chown(dir, uid, gid), os.Chown(data, uid, gid)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, limited
}

// postgresUser is who the server runs as: it refuses to be root.
func postgresUser(t testing.TB) (uid, gid int, ok bool) {
	t.Helper()
	if os.Geteuid() != 0 {
		return 0, 0, false
	}
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, _ = strconv.Atoi(u.Uid)
			gid, _ = strconv.Atoi(u.Gid)
			return uid, gid, true
		}
	}
	t.Fatal("no user postgres or nobody to run Postgres as")
	return 0, 0, false
}

// PostgresProgram returns where a program of Postgres is: in the PATH, or where Debian puts the server's.
func PostgresProgram(t testing.TB, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	paths, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(paths) == 0 {
		t.Fatalf("this test needs %s of Postgres", name)
	}
	return slices.MaxFunc(paths, func(a, b string) int { return len(a) - len(b) })
}

func (s *PostgresServer) prepare(t testing.TB, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(PostgresProgram(t, program), args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	if uid, gid, ok := postgresUser(t); ok {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	return cmd
}

func (s *PostgresServer) command(t testing.TB, program string, args ...string) {
	t.Helper()
	if out, err := s.prepare(t, program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", program, err, out)
	}
}

// write puts a file into the server's directory, which its user alone may read.
func (s *PostgresServer) write(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if uid, gid, ok := postgresUser(t); ok {
		if err := os.Chown(path, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// boot starts the server on a port of its own.
func (s *PostgresServer) boot(t testing.TB) {
	t.Helper()
	t.Cleanup(func() { s.end(syscall.SIGQUIT) })
	// Another process may take the port between the look and the start; then the server says so and ends.
	for range 10 {
		s.Port = freePort(t)
		s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))
		if s.Start(t) {
			return
		}
	}
	t.Fatalf("postgres does not start: %s", s.out)
}

// Start starts the server again that was stopped or killed, on its port, and reports whether it answers.
func (s *PostgresServer) Start(t testing.TB) bool {
	t.Helper()
	args := []string{"-D", filepath.Join(s.dir, "data"), "-p", strconv.Itoa(s.Port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="}
	if !s.o.Fsync {
		args = append(args, "-c", "fsync=off")
	}
	if s.o.TLS {
		args = append(args, "-c", "ssl=on", "-c", "ssl_cert_file="+filepath.Join(s.dir, "cert.pem"), "-c", "ssl_key_file="+filepath.Join(s.dir, "key.pem"))
	}
	for _, setting := range s.o.Settings {
		args = append(args, "-c", setting)
	}
	cmd := s.prepare(t, "postgres", args...)
	s.out = &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = s.out, s.out
	if err := cmd.Start(); err != nil {
		t.Fatalf("start postgres: %v", err)
	}
	done := make(chan struct{})
	s.PID, s.done = cmd.Process.Pid, done
	go func() {
		cmd.Wait()
		close(done)
	}()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		select {
		case <-done:
			return false
		default:
		}
		if c, err := s.connect("postgres"); err == nil {
			c.Close(context.Background())
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.end(syscall.SIGQUIT)
	t.Fatalf("postgres does not answer: %s", s.out)
	return false
}

// end sends the postmaster a signal, which must end it, and waits.
func (s *PostgresServer) end(sig syscall.Signal) {
	if s.done == nil {
		return
	}
	for _, pid := range s.processes() {
		syscall.Kill(pid, syscall.SIGCONT)
	}
	syscall.Kill(s.PID, sig)
	select {
	case <-s.done:
	case <-time.After(20 * time.Second):
		for _, pid := range s.processes() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		<-s.done
	}
	s.done = nil
}

// processes are the postmaster and its children, as long as it has not been waited for.
func (s *PostgresServer) processes() []int {
	select {
	case <-s.done:
		return nil
	default:
	}
	pids := []int{s.PID}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state ppid
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(s.PID) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// Stop shuts the server down in order: what is going on is ended and rolled back.
func (s *PostgresServer) Stop() { s.end(syscall.SIGINT) }

// Kill ends every process of the server at once.
func (s *PostgresServer) Kill() {
	done := s.done
	for _, pid := range s.processes() {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	<-done
}

// Pause stops every process of the server: connections stay open and nothing answers.
func (s *PostgresServer) Pause() {
	for _, pid := range s.processes() {
		syscall.Kill(pid, syscall.SIGSTOP)
	}
}

// Resume lets a paused server go on.
func (s *PostgresServer) Resume() {
	for _, pid := range s.processes() {
		syscall.Kill(pid, syscall.SIGCONT)
	}
}

// Log is what the server has written so far. The server must have ended.
func (s *PostgresServer) Log() string { return s.out.String() }

// URL is a target's URL for a role, with its password where it has one, and a database.
func (s *PostgresServer) URL(role, password, database string) string {
	u := url.URL{Scheme: "postgres", Host: s.Addr, Path: "/" + database, User: url.User(role)}
	if password != "" {
		u.User = url.UserPassword(role, password)
	}
	if s.CA != "" {
		u.RawQuery = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {s.CA}}.Encode()
	}
	return u.String()
}

func (s *PostgresServer) connect(database string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return pgx.Connect(ctx, s.URL("postgres", s.o.Password, database))
}

// Exec performs statements in the database postgres as its superuser, each by itself.
func (s *PostgresServer) Exec(t testing.TB, statements ...string) {
	t.Helper()
	c, err := s.connect("postgres")
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer c.Close(context.Background())
	for _, statement := range statements {
		if _, err := c.Exec(context.Background(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// Query returns the first column of the rows of a query, as text, in the database postgres as its superuser.
func (s *PostgresServer) Query(t testing.TB, query string) []string {
	t.Helper()
	c, err := s.connect("postgres")
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer c.Close(context.Background())
	rows, err := c.Query(context.Background(), query, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	values := []string{}
	for rows.Next() {
		values = append(values, string(rows.RawValues()[0]))
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return values
}

// TestBank checks a store that performs pgbench's transactions. Every call of open opens one more client of the same
// session, which loads the tables of run at scale 1.
func TestBank(t *testing.T, run string, open func(t *testing.T, o bench.Options) bench.Store) {
	for _, protocol := range []string{"simple", "extended", "prepared"} {
		for _, test := range []struct {
			name        string
			connections int
			test        func(t *testing.T, s bench.Store)
		}{
			{"Transfer", 1, testTransfer},
			{"Concurrent", 4, testBankConcurrent},
			{"Waiting", 2, testBankConcurrent},
			{"Dedicated", 4, testBankDedicated},
			{"Info", 3, testInfo},
			{"CloseTwice", 2, testBankCloseTwice},
			{"CloseInFlight", 4, testBankCloseInFlight},
		} {
			t.Run(protocol+"/"+test.name, func(t *testing.T) {
				before := goleak.IgnoreCurrent()
				s := open(t, bench.Options{Connections: test.connections, Timeout: timeout, Protocol: protocol})
				if err := s.(bench.Bank).Load(t.Context(), run, 1); err != nil {
					t.Fatalf("Load: %v", err)
				}
				test.test(t, s)
				if err := s.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
				goleak.VerifyNone(t, before)
			})
		}
	}
}

func testTransfer(t *testing.T, s bench.Store) {
	bank := s.(bench.Bank)
	for _, account := range []int{1, bench.AccountsPerBranch} {
		was, err := bank.Balance(t.Context(), account)
		if err != nil {
			t.Fatalf("Balance: %v", err)
		}
		for _, delta := range []int{5000, -5000, -1} {
			if err := bank.Transfer(t.Context(), bench.Transfer{Account: account, Branch: 1, Teller: 10, Delta: delta}, true); err != nil {
				t.Fatalf("Transfer: %v", err)
			}
			was += delta
			if got, err := bank.Balance(t.Context(), account); err != nil || got != was {
				t.Errorf("Balance after %d = %d, %v; want %d", delta, got, err, was)
			}
		}
	}
	if _, err := bank.Balance(t.Context(), 0); !errors.Is(err, bench.ErrMiss) {
		t.Errorf("Balance of no account: %v; want ErrMiss", err)
	}
	if _, err := s.Get(t.Context(), "nsop:storetest"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Get: %v; want ErrUnsupported", err)
	}
	if err := s.Set(t.Context(), "nsop:storetest", nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Set: %v; want ErrUnsupported", err)
	}
}

func testBankConcurrent(t *testing.T, s bench.Store) {
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 20 {
				if err := s.(bench.Bank).Transfer(t.Context(), bench.Transfer{Account: 1 + worker*100 + i, Branch: 1, Teller: 1 + worker, Delta: i - 10}, false); err != nil {
					t.Errorf("Transfer: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func testBankDedicated(t *testing.T, s bench.Store) {
	var wg sync.WaitGroup
	for worker := range 4 {
		own := s.(bench.Dedicated).Dedicate(worker)
		wg.Go(func() {
			for i := range 20 {
				account := 5000 + worker
				was, err := own.(bench.Bank).Balance(t.Context(), account)
				if err == nil {
					err = own.(bench.Bank).Transfer(t.Context(), bench.Transfer{Account: account, Branch: 1, Teller: 1, Delta: i}, false)
				}
				got, err2 := own.(bench.Bank).Balance(t.Context(), account)
				if err := errors.Join(err, err2); err != nil || got != was+i {
					t.Errorf("worker %d: balance %d and %d is %d, %v", worker, was, i, got, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := s.Info().Connections; n != 4 {
		t.Errorf("%d connections, want one for each of 4 workers", n)
	}
}

func testBankCloseTwice(t *testing.T, s bench.Store) {
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if n := s.Info().Connections; n != 0 {
		t.Errorf("after Close %d connections are open", n)
	}
	for range 3 {
		if _, err := s.(bench.Bank).Balance(t.Context(), 1); err == nil || errors.Is(err, bench.ErrMiss) {
			t.Errorf("Balance after Close = %v; want an error", err)
		}
		if err := s.(bench.Bank).Transfer(t.Context(), bench.Transfer{Account: 1, Branch: 1, Teller: 1, Delta: 1}, false); bench.Kind(err) != "reset" {
			t.Errorf("Transfer after Close = %v (%s); want an error of kind reset", err, bench.Kind(err))
		}
	}
}

// testBankCloseInFlight closes the store while every connection performs transactions.
func testBankCloseInFlight(t *testing.T, s bench.Store) {
	ended, started := make(chan error), make(chan struct{}, 4)
	for worker := range 4 {
		go func() {
			var err error
			for i := 0; err == nil; i++ {
				if i == 1 {
					started <- struct{}{}
				}
				err = s.(bench.Bank).Transfer(t.Context(), bench.Transfer{Account: 1 + worker, Branch: 1, Teller: 1, Delta: 1}, false)
			}
			ended <- err
		}()
	}
	for range 4 {
		<-started
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	for range 4 {
		select {
		case err := <-ended:
			if bench.Kind(err) != "reset" {
				t.Errorf("an operation in flight ended with %v (%s); want kind reset", err, bench.Kind(err))
			}
		case <-time.After(timeout / 2):
			t.Fatal("an operation still runs after Close")
		}
	}
}
