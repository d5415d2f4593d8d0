package storetest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// ClusterNodes are the masters of a cluster of a test's own, which has no replicas. They end with the test.
type ClusterNodes []*RedisServer

// slots is how many slots a cluster has.
const slots = 16384

// Cluster starts a cluster of three redis-servers with args after their own, each of which has a third of the slots. It
// returns once each of them takes every slot to be served.
func Cluster(t testing.TB, args ...string) ClusterNodes {
	t.Helper()
	return cluster(t, RedisServer{}, args)
}

// ClusterTLS starts a cluster whose nodes take TLS connections only, with one certificate for 127.0.0.1.
func ClusterTLS(t testing.TB, args ...string) ClusterNodes {
	t.Helper()
	s, certificate := secureRedis(t)
	return cluster(t, s, append(append(certificate, "--tls-cluster", "yes"), args...))
}

func cluster(t testing.TB, s RedisServer, args []string) ClusterNodes {
	t.Helper()
	nodes := make(ClusterNodes, 3)
	for i := range nodes {
		node := s
		nodes[i] = start(t, &node, append([]string{"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "2000"}, args...)...)
		nodes[i].Do(t, "CLUSTER", "ADDSLOTSRANGE", i*slots/len(nodes), (i+1)*slots/len(nodes)-1)
		nodes[i].Do(t, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		if i > 0 {
			nodes[i].Do(t, "CLUSTER", "MEET", "127.0.0.1", nodes[0].Port, nodes[0].bus)
		}
	}
	for _, node := range nodes {
		node.await(t, "cluster_state:ok", fmt.Sprintf("cluster_size:%d", len(nodes)))
	}
	return nodes
}

// await waits for CLUSTER INFO to hold all of lines.
func (s *RedisServer) await(t testing.TB, lines ...string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		info := fmt.Sprint(s.Do(t, "CLUSTER", "INFO"))
		missing := ""
		for _, line := range lines {
			if !strings.Contains(info, line+"\r\n") {
				missing = line
			}
		}
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the cluster has no %s: %s", missing, info)
		}
	}
}

// AwaitDown waits for the nodes that are not down to notice that one is, and to serve nothing from then on.
func (c ClusterNodes) AwaitDown(t testing.TB, down *RedisServer) {
	t.Helper()
	for _, node := range c {
		if node != down {
			node.await(t, "cluster_state:fail")
		}
	}
}

// Keys returns how many keys each node has.
func (c ClusterNodes) Keys(t testing.TB) []int64 {
	t.Helper()
	keys := make([]int64, len(c))
	for i, node := range c {
		keys[i] = node.Do(t, "DBSIZE").(int64)
	}
	return keys
}

// Slot returns the slot of key and the node that had it when the cluster was made.
func (c ClusterNodes) Slot(t testing.TB, key string) (slot int64, owner int) {
	t.Helper()
	slot = c[0].Do(t, "CLUSTER", "KEYSLOT", key).(int64)
	for owner = range c {
		if int(slot) < (owner+1)*slots/len(c) {
			break
		}
	}
	return slot, owner
}

// Move has node to take a slot from node from, keys and all, in the way of redis-cli's reshard.
func (c ClusterNodes) Move(t testing.TB, slot int64, from, to int) {
	t.Helper()
	c.Migrating(t, slot, from, to)
	for {
		keys := c[from].Do(t, "CLUSTER", "GETKEYSINSLOT", slot, 100).([]any)
		if len(keys) == 0 {
			break
		}
		c[from].Do(t, "MIGRATE", append([]any{"127.0.0.1", c[to].Port, "", 0, 10000, "KEYS"}, keys...)...)
	}
	id := c[to].Do(t, "CLUSTER", "MYID")
	for _, i := range []int{to, from} { // the new owner first, or a client could be sent in circles
		c[i].Do(t, "CLUSTER", "SETSLOT", slot, "NODE", id)
	}
}

// Migrating begins to move a slot: from then on what node from does not have of it is asked of node to (ASK).
func (c ClusterNodes) Migrating(t testing.TB, slot int64, from, to int) {
	t.Helper()
	c[to].Do(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", c[from].Do(t, "CLUSTER", "MYID"))
	c[from].Do(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", c[to].Do(t, "CLUSTER", "MYID"))
}
