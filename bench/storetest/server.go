package storetest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
)

// A RedisServer is a redis-server of a test's own. It ends with the test.
type RedisServer struct {
	Addr string // 127.0.0.1:port
	Port int
	PID  int
	Cmd  *exec.Cmd

	CA    string // file of the certificate that signed the server's, "" without TLS
	CAPEM string // what the file holds

	out  *bytes.Buffer
	tls  *tls.Config
	pass string
	bus  int           // port of the cluster's bus
	done chan struct{} // closed once the process has been waited for
}

// Redis starts a redis-server that persists nothing, with args after its own, on a port of 127.0.0.1 that was free. It
// returns once the server answers, be it that it is loading its data; a machine without a redis-server fails the test.
func Redis(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	return start(t, &RedisServer{}, args...)
}

// RedisTLS starts a redis-server that takes TLS connections only, with a certificate for 127.0.0.1 and localhost signed
// by an authority of its own.
func RedisTLS(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	s, certificate := secureRedis(t)
	return start(t, &s, append(certificate, args...)...)
}

// secureRedis returns a server that has TLS and does not run yet, and the arguments that its certificate takes.
func secureRedis(t testing.TB) (s RedisServer, args []string) {
	t.Helper()
	dir := t.TempDir()
	ca, cert, key := certificates(t)
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	s = RedisServer{CA: write("ca.pem", ca), CAPEM: string(ca), tls: &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}}
	return s, []string{
		"--tls-cert-file", write("cert.pem", cert), "--tls-key-file", write("key.pem", key),
		"--tls-ca-cert-file", s.CA, "--tls-auth-clients", "no",
	}
}

func start(t testing.TB, s *RedisServer, args ...string) *RedisServer {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("this test needs redis-server: %v", err)
	}
	for i, arg := range args[:max(len(args)-1, 0)] {
		if arg == "--requirepass" {
			s.pass = args[i+1]
		}
	}
	// Another process may take the port between the look and the start; then the server says so and ends.
	for range 10 {
		if s.try(t, bin, args) {
			return s
		}
	}
	t.Fatalf("redis-server does not start: %s", s.out)
	return nil
}

func (s *RedisServer) try(t testing.TB, bin string, args []string) bool {
	t.Helper()
	s.Port = freePort(t)
	s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))
	ports := []string{"--port", strconv.Itoa(s.Port)}
	if s.tls != nil {
		ports = []string{"--port", "0", "--tls-port", strconv.Itoa(s.Port)}
	}
	if slices.Contains(args, "--cluster-enabled") { // which has its bus at the port plus 10000 otherwise
		s.bus = freePort(t)
		ports = append(ports, "--cluster-port", strconv.Itoa(s.bus))
	}
	s.out = &bytes.Buffer{}
	s.Cmd = exec.Command(bin, append(append(ports,
		"--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", t.TempDir(), "--loglevel", "warning"), args...)...)
	s.Cmd.Stdout, s.Cmd.Stderr = s.out, s.out
	if err := s.Cmd.Start(); err != nil {
		t.Fatalf("start redis-server: %v", err)
	}
	s.PID = s.Cmd.Process.Pid
	done := make(chan struct{})
	s.done = done
	cmd := s.Cmd
	go func() {
		cmd.Wait()
		close(done)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-done
	})
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		select {
		case <-done:
			return false
		default:
		}
		if s.answers() {
			return true
		}
		time.Sleep(5 * time.Millisecond)
	}
	cmd.Process.Kill()
	<-done
	t.Fatalf("redis-server does not answer: %s", s.out)
	return false
}

// answers reports whether our own server answers, and not another that took the port.
func (s *RedisServer) answers() bool {
	c, err := s.dial()
	if err != nil {
		return false
	}
	defer c.Close()
	info, err := redis.String(c.Do("INFO", "server"))
	if _, refused := err.(redis.Error); refused {
		return true
	}
	return strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", s.PID))
}

func (s *RedisServer) dial() (redis.Conn, error) {
	return redis.Dial("tcp", s.Addr, redis.DialUseTLS(s.tls != nil), redis.DialTLSConfig(s.tls), redis.DialPassword(s.pass),
		redis.DialConnectTimeout(5*time.Second), redis.DialReadTimeout(20*time.Second), redis.DialWriteTimeout(20*time.Second))
}

// Do performs one command as the default user, on a connection of its own, and returns its reply: a string, an int64, a
// list or nil. A bulk string is a string. An error fails the test.
func (s *RedisServer) Do(t testing.TB, cmd string, args ...any) any {
	t.Helper()
	c, err := s.dial()
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	defer c.Close()
	reply, err := c.Do(cmd, args...)
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	if b, ok := reply.([]byte); ok {
		return string(b)
	}
	return reply
}

// Pause stops the process, which then answers nothing while its connections stay open.
func (s *RedisServer) Pause(t testing.TB) { s.signal(t, syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (s *RedisServer) Resume(t testing.TB) { s.signal(t, syscall.SIGCONT) }

// Kill ends the process and waits for it.
func (s *RedisServer) Kill(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGKILL)
	<-s.done
}

func (s *RedisServer) signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := s.Cmd.Process.Signal(sig); err != nil {
		t.Fatalf("signal redis-server: %v", err)
	}
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// certificates returns an authority's certificate and a server's, signed by it, with its key, each in PEM form.
func certificates(t testing.TB) (ca, cert, key []byte) {
	t.Helper()
	sign := func(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if signer == nil {
			signer = own
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &own.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), own
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "storetest CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "storetest"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, // a node of a cluster is both
	}
	ca, caKey := sign(authority, authority, nil)
	cert, serverKey := sign(server, authority, caKey)
	der, err := x509.MarshalPKCS8PrivateKey(serverKey)
	if err != nil {
		t.Fatal(err)
	}
	return ca, cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}
