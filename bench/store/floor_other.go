//go:build !linux

package store

import (
	"net"
	"time"
)

func newLink(conn net.Conn, timeout time.Duration, _ bool) (link, error) {
	return &stream{conn: conn, bound: bound{timeout: timeout}}, nil
}
