package store

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"nsop/bench"
)

// readerOf returns a reader of what r holds.
func readerOf(r io.Reader) *respReader { return &respReader{fill: r.Read} }

func TestRespReader(t *testing.T) {
	stream := "+OK\r\n-ERR no\r\n:-42\r\n$5\r\na\r\nbc\r\n$-1\r\n$0\r\n\r\n*-1\r\n*0\r\n*3\r\n$1\r\nx\r\n*2\r\n:1\r\n$-1\r\n+y\r\n:9223372036854775807\r\n"
	want := []bench.Reply{
		{Bytes: []byte("OK")}, {Err: replyError("ERR no")}, {Int: -42}, {Bytes: []byte("a\r\nbc")}, {Nil: true}, {Bytes: []byte{}},
		{Nil: true}, {Len: 0}, {Len: 3}, {Int: 1<<63 - 1},
	}
	for name, r := range map[string]io.Reader{
		"whole": strings.NewReader(stream), "a byte at a time": iotest.OneByteReader(strings.NewReader(stream)),
	} {
		replies := make([]bench.Reply, len(want))
		if n, err := readerOf(r).batch(replies); err != nil || n != len(want) {
			t.Errorf("%s: %d replies, %v", name, n, err)
		}
		for i, got := range replies {
			w := want[i]
			if got.Err != w.Err || got.Nil != w.Nil || got.Int != w.Int || got.Len != w.Len || !bytes.Equal(got.Bytes, w.Bytes) {
				t.Errorf("%s: reply %d = %+v; want %+v", name, i, got, w)
			}
		}
	}
}

func TestRespReaderMalformed(t *testing.T) {
	for _, stream := range []string{
		"\r\n", "x\r\n", "+OK\n", "$x\r\n", "$\r\n", "$-2\r\n", "$536870913\r\n", "$99999999999999999999\r\n", "$1\r\nabc\r\n", ":\r\n", ":1x\r\n",
		"*x\r\n", "*-2\r\n", "*1\r\n?\r\n", strings.Repeat("*1\r\n", 100) + ":1\r\n", "+" + strings.Repeat("x", 200<<10) + "\r\n",
		"%1\r\n+a\r\n+b\r\n",
	} {
		var reply [1]bench.Reply
		_, err := readerOf(strings.NewReader(stream)).batch(reply[:])
		if err == nil || !strings.HasPrefix(err.Error(), "protocol: ") {
			t.Errorf("%.20q: error %v", stream, err)
		}
	}
	for _, stream := range []string{"", "$5\r\nab", "*536870912\r\n", "$536870912\r\nx"} {
		var reply [1]bench.Reply
		r := readerOf(strings.NewReader(stream))
		if _, err := r.batch(reply[:]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: error %v; want an unexpected EOF", stream, err)
		}
		if len(r.buf) > 64<<10 {
			t.Errorf("%q: a buffer of %d bytes for %d that came", stream, len(r.buf), len(stream))
		}
	}
	r := readerOf(strings.NewReader("+1\r\n+2\r\n"))
	var reply [1]bench.Reply
	if _, err := r.batch(reply[:]); err != nil {
		t.Fatal(err)
	}
	if _, err := r.batch(reply[:]); err == nil {
		t.Error("a reply too many is taken for the next command's")
	}
}

func FuzzRespReader(f *testing.F) {
	f.Add([]byte("+OK\r\n$3\r\nabc\r\n*2\r\n:1\r\n$-1\r\n"), 3)
	f.Add([]byte("-ERR\r\n*1\r\n*1\r\n*0\r\n"), 2)
	f.Add([]byte("$536870912\r\n"), 1)
	f.Fuzz(func(t *testing.T, stream []byte, n int) {
		n = min(max(n, 0), 16)
		whole, bytewise := make([]bench.Reply, n), make([]bench.Reply, n)
		r := readerOf(bytes.NewReader(stream))
		n1, err1 := r.batch(whole)
		n2, err2 := readerOf(iotest.OneByteReader(bytes.NewReader(stream))).batch(bytewise)
		if n1 != n2 || (err1 == nil) != (err2 == nil) {
			t.Fatalf("%d replies, %v at once; %d, %v byte by byte", n1, err1, n2, err2)
		}
		if len(r.buf) > 2*len(stream)+2*chunk {
			t.Errorf("a buffer of %d bytes for %d", len(r.buf), len(stream))
		}
		for i := range n1 {
			a, b := whole[i], bytewise[i]
			if a.Err != b.Err || a.Nil != b.Nil || a.Int != b.Int || a.Len != b.Len || !bytes.Equal(a.Bytes, b.Bytes) {
				t.Errorf("reply %d: %+v at once, %+v byte by byte", i, a, b)
			}
		}
	})
}
