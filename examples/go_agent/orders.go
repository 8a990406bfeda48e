package main

import (
	"context"
	"fmt"
	"log"
	"time"
)

// Orders of the coordinator: which are refused, which are work that runs already, which are new work.

// Work names a piece of work: whoever orders it again hears how it stands.
type Work struct{ kind, session string }

type Order struct {
	Work
	term, index, epoch int64
	requestID          string
	logID              []byte
}

// Running is a piece of work, and the newest order for it, whose term and index its reports carry. Under the lock.
type Running struct {
	order                     *Order
	status, failure           string
	bytesDone, bytesAll, keys int64
	stop                      context.CancelFunc
	ended                     chan struct{}
}

// onOrder takes an order of the flow. One that comes while nothing is served is repeated by the coordinator.
func (n *Node) onOrder(ctx context.Context, from *Record) {
	order := &Order{
		Work{from.Text("kind"), from.Text("session")},
		from.Int("term"), from.Int("index"), from.Int("epoch"), from.Text("request_id"), from.Bytes("log_id"),
	}
	n.lock.Lock()
	ours, serves := from.Text("node_id") == n.settings.nodeID && string(order.logID) == n.state.logID, n.serves()
	n.lock.Unlock()
	if ours && serves {
		go n.take(ctx, order)
	} else if ours {
		log.Printf("the order of index %d is not taken: nothing is served now", order.index)
	}
}

func (n *Node) take(ctx context.Context, order *Order) {
	if !n.readUpTo(ctx, order.epoch, orderLimit) {
		return
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	if order.term != n.state.term || order.term == n.term && order.index <= n.index {
		return // of a coordinator that was replaced, or whose claim was not read yet, or late
	}
	n.term, n.index = order.term, order.index
	running := n.works[order.Work]
	if running == nil || running.status == "failed" {
		n.start(ctx, order)
		return
	}
	running.order = order
	n.report(running)
}

// start begins new work. Under the lock.
func (n *Node) start(ctx context.Context, order *Order) {
	for work, running := range n.works { // nobody asks for what ended under a session that has closed
		if running.status != "running" && !n.wanted(running.order) {
			delete(n.works, work)
		}
	}
	ctx, stop := context.WithCancel(ctx)
	running := &Running{order: order, status: "running", stop: stop, ended: make(chan struct{})}
	n.works[order.Work] = running
	go n.run(ctx, running)
	go func() {
		for beat := time.Tick(heartbeat); ; {
			n.lock.Lock()
			if running.status == "running" {
				n.report(running)
			}
			n.lock.Unlock()
			select {
			case <-running.ended:
				return
			case <-beat:
			}
		}
	}()
}

func (n *Node) run(ctx context.Context, running *Running) {
	order := running.order
	err := n.olderEnded(ctx, running)
	if err == nil {
		switch order.kind {
		case "stream":
			err = n.stream(ctx, running)
		case "cleanup", "truncate":
			err = n.deleteAll(ctx, running)
		default:
			err = fmt.Errorf("this store does not %s: it keeps no files", order.kind)
		}
	}
	running.stop()
	n.store.sync()
	n.lock.Lock()
	defer n.lock.Unlock()
	if err == nil && !n.wanted(order) {
		err = notOpen(order)
	}
	running.status = "success"
	if err != nil {
		running.status, running.failure = "failed", err.Error()
	}
	close(running.ended)
	n.report(running)
}

func notOpen(order *Order) error {
	return fmt.Errorf("session %q is not open", order.session)
}

// wanted: a transition has the order's session open, or the node is to clean up under it. Under the lock.
func (n *Node) wanted(order *Order) bool {
	if n.state.ofSession(order.session) != nil {
		return true
	}
	row, id := n.state.nodes[n.settings.nodeID], n.settings.nodeID
	since := int64(0)
	if row != nil {
		since = row.Int("cleanup_since")
	}
	return since > 0 && order.session == fmt.Sprintf("cleanup-%s-%d", id, since)
}

// olderEnded waits for work of sessions that have closed: it may be on the same ranges.
func (n *Node) olderEnded(ctx context.Context, running *Running) error {
	older := []*Running{}
	n.lock.Lock()
	for _, other := range n.works {
		if other != running && !n.wanted(other.order) {
			older = append(older, other)
		}
	}
	isWanted := n.wanted(running.order)
	n.lock.Unlock()
	if !isWanted {
		return notOpen(running.order)
	}
	limit := time.After(orderLimit)
	for _, other := range older {
		select {
		case <-other.ended:
		case <-limit:
			return fmt.Errorf("work under a session that has closed does not end")
		case <-ctx.Done():
			return notOpen(running.order)
		}
	}
	return nil
}

// report says how work stands. Under the lock, so that no report of it overtakes another.
func (n *Node) report(running *Running) {
	order := running.order
	n.send("reports", "Report", map[string]any{
		"node_id": n.settings.nodeID, "term": order.term, "index": order.index, "kind": order.kind,
		"session": order.session, "request_id": order.requestID, "status": running.status,
		"bytes_done": running.bytesDone, "bytes_total": max(running.bytesAll, running.bytesDone),
		"keys_done": running.keys, "bytes_compared": 0, "error": running.failure,
		"at_ms": time.Now().UnixMilli(), "log_id": order.logID, "manifest": "",
	})
}
