package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"nsop/bench"
)

// A memcachedFloor is for memcached what a floor is for Redis: a socket to each server for each worker, no library.
type memcachedFloor struct {
	servers fleet
	o       bench.Options
	workers []*memcachedWorker
	next    atomic.Uint32
}

func openMemcachedFloor(ctx context.Context, servers fleet, o bench.Options) (bench.Store, error) {
	s := &memcachedFloor{servers: servers, o: o}
	for range o.Connections {
		w := &memcachedWorker{}
		for _, d := range servers {
			c := &memcachedConn{wire: wire{dialer: d, timeout: o.Timeout, alone: o.Connections == 1}}
			c.in.fill = c.read
			w.conns = append(w.conns, c)
		}
		s.workers = append(s.workers, w)
	}
	err := servers.each(ctx, func(ctx context.Context, i int) error {
		var next atomic.Int32
		return prove(ctx, o, func(ctx context.Context) (func() error, error) {
			c := s.workers[next.Add(1)-1].conns[i]
			c.turn.Lock()
			defer c.turn.Unlock()
			defer context.AfterFunc(ctx, c.interrupt)()
			return func() error { return nil }, c.version(ctx)
		})
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// pick returns the server out of n that has key: the one that gomemcache's ServerList would choose.
func pick(key string, n int) int {
	if n == 1 {
		return 0
	}
	// The conversion that copies would allocate: what the checksum reads is taken to escape.
	return int(crc32.ChecksumIEEE(unsafe.Slice(unsafe.StringData(key), len(key))) % uint32(n))
}

// Dedicate returns the connections of that worker alone. What its Get returns is valid until the next call.
func (s *memcachedFloor) Dedicate(worker int) bench.Store { return s.workers[worker] }

// take locks a worker, one whose connections nobody uses if there is one.
func (s *memcachedFloor) take() *memcachedWorker {
	first := int(s.next.Add(1) % uint32(len(s.workers)))
	for i := range s.workers {
		if w := s.workers[(first+i)%len(s.workers)]; w.turn.TryLock() {
			return w
		}
	}
	w := s.workers[first]
	w.turn.Lock()
	return w
}

func (s *memcachedFloor) Get(ctx context.Context, key string) ([]byte, error) {
	w := s.take()
	defer w.turn.Unlock()
	v, err := w.Get(ctx, key)
	return bytes.Clone(v), err // the connection's next user overwrites v
}

func (s *memcachedFloor) Set(ctx context.Context, key string, value []byte) error {
	w := s.take()
	defer w.turn.Unlock()
	return w.Set(ctx, key, value)
}

func (s *memcachedFloor) Incr(ctx context.Context, key string) error {
	w := s.take()
	defer w.turn.Unlock()
	return w.Incr(ctx, key)
}

func (s *memcachedFloor) GetMulti(ctx context.Context, keys []string) (int, error) {
	w := s.take()
	defer w.turn.Unlock()
	return w.GetMulti(ctx, keys)
}

func (s *memcachedFloor) Info() bench.Info {
	n := 0
	for _, w := range s.workers {
		n += w.Info().Connections
	}
	settings := memcachedSettings(s.servers, s.o)
	settings["pooling"] = "a connection to each server for each worker"
	return bench.Info{Connections: n, Settings: settings}
}

func (s *memcachedFloor) Close() error {
	s.servers.close()
	for _, w := range s.workers {
		for _, c := range w.conns {
			c.interrupt()
		}
	}
	for _, w := range s.workers {
		w.Close()
	}
	return nil
}

// A memcachedWorker has a connection to each server.
type memcachedWorker struct {
	turn  sync.Mutex // held by who took the worker from its store; the connections have their own
	conns []*memcachedConn
}

func (w *memcachedWorker) conn(key string) *memcachedConn { return w.conns[pick(key, len(w.conns))] }

// Get returns the value of key, valid until the next call.
func (w *memcachedWorker) Get(ctx context.Context, key string) ([]byte, error) {
	c := w.conn(key)
	c.turn.Lock()
	v, err := c.get(ctx, key)
	c.turn.Unlock()
	return v, err
}

// Set writes key.
func (w *memcachedWorker) Set(ctx context.Context, key string, value []byte) error {
	c := w.conn(key)
	c.turn.Lock()
	err := c.set(ctx, key, value)
	c.turn.Unlock()
	return err
}

// Incr adds one to the number at key.
func (w *memcachedWorker) Incr(ctx context.Context, key string) error {
	c := w.conn(key)
	c.turn.Lock()
	err := c.incr(ctx, key)
	c.turn.Unlock()
	return err
}

// GetMulti asks every server that has some of keys before it reads the first answer.
func (w *memcachedWorker) GetMulti(ctx context.Context, keys []string) (found int, err error) {
	for _, c := range w.conns { // always in this order
		c.turn.Lock()
		c.asked = false
	}
	found, err = w.getMulti(ctx, keys)
	for _, c := range w.conns { // a defer in a loop would allocate
		c.turn.Unlock()
	}
	return found, err
}

func (w *memcachedWorker) getMulti(ctx context.Context, keys []string) (found int, err error) {
	for _, key := range keys {
		c := w.conn(key)
		if !c.asked {
			if err := c.ready(ctx); err != nil {
				return 0, err
			}
			c.asked, c.out = true, append(c.out[:0], "get"...)
		}
		c.out = append(append(c.out, ' '), key...)
	}
	sent := 0
	for ; sent < len(w.conns) && err == nil; sent++ {
		if c := w.conns[sent]; c.asked {
			c.out = append(c.out, "\r\n"...)
			err = c.link.send(c.out, len(w.conns) > 1)
		}
	}
	for _, c := range w.conns[:sent] {
		if !c.asked {
			continue
		}
		if err != nil {
			c.drop() // its answer is not going to be read
			continue
		}
		var n int
		n, err = c.values()
		found += n
	}
	return found, err
}

func (w *memcachedWorker) Info() bench.Info {
	n := 0
	for _, c := range w.conns {
		n += c.wire.Info().Connections
	}
	return bench.Info{Connections: n}
}

// Close ends an operation in flight and closes the connections of this worker alone.
func (w *memcachedWorker) Close() error {
	for _, c := range w.conns {
		c.wire.Close()
	}
	return nil
}

// A memcachedConn is a connection to one server. The caller of its methods holds turn.
type memcachedConn struct {
	wire
	asked bool // has a part of the multi-get going on
}

// ready dials where that is needed.
func (c *memcachedConn) ready(ctx context.Context) error {
	if c.link != nil {
		return nil
	}
	return c.connect(ctx, func() error { return nil })
}

// ask sends out, which is one command, and reads the first line of the answer.
func (c *memcachedConn) ask() (kind byte, rest []byte, err error) {
	if err := c.begin(); err != nil {
		return 0, nil, err
	}
	if err := c.link.send(c.out, false); err != nil {
		c.drop()
		return 0, nil, err
	}
	return c.line()
}

// begin makes the buffer free for another answer.
func (c *memcachedConn) begin() error {
	if c.in.r != c.in.w {
		c.drop()
		return errors.New("protocol: an answer that nothing asked for")
	}
	c.in.r, c.in.w, c.in.spans = 0, 0, c.in.spans[:0]
	return nil
}

func (c *memcachedConn) line() (kind byte, rest []byte, err error) {
	if kind, rest, err = c.in.line(); err != nil {
		c.drop()
	}
	return kind, rest, err
}

// refuse is the error that a line means which is not the answer expected.
func (c *memcachedConn) refuse(kind byte, rest []byte) error {
	err := memcachedRefusal(string(kind) + string(rest))
	if !errors.As(err, new(replyError)) {
		c.drop()
	}
	return err
}

func (c *memcachedConn) version(ctx context.Context) error {
	if err := c.ready(ctx); err != nil {
		return err
	}
	c.out = append(c.out[:0], "version\r\n"...)
	kind, rest, err := c.ask()
	if err == nil && !(kind == 'V' && bytes.HasPrefix(rest, []byte("ERSION "))) {
		err = c.refuse(kind, rest)
	}
	return err
}

func (c *memcachedConn) get(ctx context.Context, key string) ([]byte, error) {
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	c.out = append(append(append(c.out[:0], "get "...), key...), "\r\n"...)
	kind, rest, err := c.ask()
	if err != nil {
		return nil, err
	}
	if kind == 'E' && string(rest) == "ND" {
		return nil, bench.ErrMiss
	}
	size, err := c.value(kind, rest)
	if err != nil {
		return nil, err
	}
	to := c.in.r - len("\r\n")
	c.in.spans = append(c.in.spans, span{0, to - size, to}) // so that it stays while the rest is read
	if kind, rest, err = c.line(); err != nil {
		return nil, err
	}
	if kind != 'E' || string(rest) != "ND" {
		return nil, c.refuse(kind, rest)
	}
	return c.in.buf[to-size : to : to], nil
}

// value reads a value and the line's end after it, whose line "VALUE key flags bytes" has been read.
func (c *memcachedConn) value(kind byte, rest []byte) (size int, err error) {
	head, ok := bytes.CutPrefix(rest, []byte("ALUE "))
	i := bytes.LastIndexByte(head, ' ')
	if kind != 'V' || !ok || i < 0 {
		return 0, c.refuse(kind, rest)
	}
	n, err := parseInt(head[i+1:])
	if err == nil && (n < 0 || n > maxBulk) {
		err = fmt.Errorf("protocol: length %d", n)
	}
	if err == nil {
		err = c.in.bulk(int(n))
	}
	if err != nil {
		c.drop()
	}
	return int(n), err
}

// values reads what a multi-get answers and returns how many values that are.
func (c *memcachedConn) values() (n int, err error) {
	if err := c.begin(); err != nil {
		return 0, err
	}
	for {
		kind, rest, err := c.line()
		if err != nil {
			return n, err
		}
		if kind == 'E' && string(rest) == "ND" {
			return n, nil
		}
		if _, err := c.value(kind, rest); err != nil {
			return n, err
		}
		n++
	}
}

func (c *memcachedConn) set(ctx context.Context, key string, value []byte) error {
	if err := c.ready(ctx); err != nil {
		return err
	}
	c.out = append(append(append(c.out[:0], "set "...), key...), " 0 3600 "...) // bench.TTL
	c.out = append(strconv.AppendInt(c.out, int64(len(value)), 10), "\r\n"...)
	c.out = append(append(c.out, value...), "\r\n"...)
	kind, rest, err := c.ask()
	if err == nil && !(kind == 'S' && string(rest) == "TORED") {
		err = c.refuse(kind, rest)
	}
	return err
}

func (c *memcachedConn) incr(ctx context.Context, key string) error {
	if err := c.ready(ctx); err != nil {
		return err
	}
	c.out = append(append(append(c.out[:0], "incr "...), key...), " 1\r\n"...)
	kind, rest, err := c.ask()
	switch {
	case err != nil:
		return err
	case kind >= '0' && kind <= '9':
		return nil
	case kind == 'N' && string(rest) == "OT_FOUND":
		return bench.ErrMiss
	}
	return c.refuse(kind, rest)
}
