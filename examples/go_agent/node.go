package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"log"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	heartbeat  = 500 * time.Millisecond
	catchUp    = 2 * time.Second // a replica that meets a newer version reads on for so long
	orderLimit = 10 * time.Second
	ahead      = 32 // acks that are counted on the disk at one time
)

// Node is the agent. Its lock makes a turn: no epoch comes between a check and the effect that rests on it.
type Node struct {
	settings Settings
	schemas  *Schemas
	kafka    *kgo.Client // to write with

	lock     sync.Mutex
	state    *State
	identity *Identity
	store    *Store
	open     bool
	caughtUp bool
	lookedAt time.Time
	changed  chan struct{} // closed with each epoch, and made anew
	tell     chan struct{} // what an ack tells has changed
	requests map[*Routed]bool
	sessions map[string]int // under which work runs, and how much
	sequence int64

	term, index int64
	works       map[Work]*Running
	done        map[string]map[PieceKey]bool // pulled, by session
}

func hexOf(id string) string { return hex.EncodeToString([]byte(id)) }

// onEpoch is called by the log for each winner.
func (n *Node) onEpoch(epoch *Record) error {
	n.lock.Lock()
	defer n.lock.Unlock()
	if err := n.state.apply(epoch); err != nil {
		return err
	}
	if bound := n.identity; n.state.epoch == bound.Epoch && hexOf(n.state.stateID) != bound.StateID {
		log.Fatalf("the log has another epoch %d than this node acknowledged", bound.Epoch)
	}
	if bound := n.identity; bound.LogID != "" && hexOf(n.state.logID) != bound.LogID {
		log.Fatalf("this directory is of log %s, and the log is %s", bound.LogID, hexOf(n.state.logID))
	}
	for _, running := range n.works {
		if !n.wanted(running.order) {
			running.stop()
		}
	}
	if n.open && n.state.createdAt > n.identity.Epoch {
		// No row of it is stored before: a log that lost this epoch would not know what the row belongs to.
		if err := n.note(); err != nil {
			return fmt.Errorf("epoch %d created data, and cannot be put on the disk: %w", n.state.epoch, err)
		}
	}
	n.wake()
	close(n.changed)
	n.changed = make(chan struct{})
	return nil
}

// note puts on the disk what others may count on from now on, and what stored rows depend on. Under the lock.
func (n *Node) note() error {
	state := n.state
	return n.identity.save(func(i *Identity) {
		i.Version, i.Fence, i.Epoch, i.StateID = state.version, state.fence, state.epoch, hexOf(state.stateID)
	})
}

// looked is called by the log when its last winner was found where it was read.
func (n *Node) looked(end int64, next int64) {
	n.lock.Lock()
	defer n.lock.Unlock()
	n.lookedAt = time.Now()
	if end <= next && n.state.epoch < n.identity.Epoch {
		log.Fatalf("the log ends at epoch %d, and this node acknowledged %d", n.state.epoch, n.identity.Epoch)
	}
	n.caughtUp = n.caughtUp || end <= next
}

func (n *Node) wake() {
	select {
	case n.tell <- struct{}{}:
	default:
	}
}

// serves: the node is a member's process, and the log was looked at a short while ago. Under the lock.
func (n *Node) serves() bool {
	return n.open && time.Since(n.lookedAt) < lookIsOld
}

// until waits for a condition, which is asked under the lock after each epoch and a few times a second.
func (n *Node) until(ctx context.Context, limit time.Duration, condition func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		n.lock.Lock()
		met, changed := condition(), n.changed
		n.lock.Unlock()
		if met {
			return true
		}
		select {
		case <-changed:
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return false
		}
	}
}

func (n *Node) readUpTo(ctx context.Context, epoch int64, limit time.Duration) bool {
	return n.until(ctx, limit, func() bool { return n.state.epoch >= epoch })
}

// oldestInUse is the lowest version by which a request that waits here is still routed. Under the lock.
func (n *Node) oldestInUse() int64 {
	oldest := n.state.version
	for asked := range n.requests {
		if asked.version < oldest && !n.state.unchanged(asked) {
			oldest = asked.version
		}
	}
	return oldest
}

// enter begins work under a session, which ends with leave. Under the lock.
func (n *Node) enter(session string) { n.sessions[session]++; n.wake() }
func (n *Node) leave(session string) {
	n.lock.Lock()
	defer n.lock.Unlock()
	if n.sessions[session]--; n.sessions[session] == 0 {
		delete(n.sessions, session)
	}
	n.wake()
}

// acknowledge tells what is applied and in use, at once when it has changed, else with each heartbeat.
func (n *Node) acknowledge(ctx context.Context) {
	for beat := time.Tick(heartbeat); ctx.Err() == nil; {
		select {
		case <-beat:
		case <-n.tell:
		case <-ctx.Done():
			return
		}
		if ack := n.ack(); ack != nil {
			n.send("acks", "Ack", ack)
		}
	}
}

// ack is what there is to tell now; nil: nothing. What it tells for the first time is on the disk before.
func (n *Node) ack() map[string]any {
	n.lock.Lock()
	defer n.lock.Unlock()
	state, noted := n.state, n.identity
	if !n.serves() {
		return nil
	}
	if state.version > noted.Version || state.fence > noted.Fence || state.lastExclusion() > noted.Epoch {
		if err := n.note(); err != nil {
			log.Print("no ack: what it tells cannot be put on the disk: ", err)
			return nil
		}
	}
	if n.sequence >= noted.Heartbeats {
		if err := noted.save(func(i *Identity) { i.Heartbeats = n.sequence + ahead }); err != nil {
			log.Print("no ack: it cannot be counted on the disk: ", err)
			return nil
		}
	}
	inUse := []string{}
	for session := range n.sessions {
		inUse = append(inUse, session)
	}
	slices.Sort(inUse)
	n.sequence++
	return map[string]any{
		"node_id": noted.NodeID, "boot_id": noted.bootID(), "sequence": n.sequence, "epoch": state.epoch,
		"version": state.version, "fence_version": state.fence, "oldest_version_in_use": n.oldestInUse(),
		"sessions_in_use": inUse, "host_id": noted.HostID, "at_ms": time.Now().UnixMilli(),
		"log_id": []byte(state.logID), "state_id": []byte(state.stateID), "prepared": state.resizing(),
	}
}

// send sends off and waits for nothing: whatever matters is said again.
func (n *Node) send(topic, schema string, values map[string]any) {
	n.sendAs(topic, n.settings.nodeID, n.schemas.Encode(schema, values))
}

func (n *Node) sendAs(topic, key string, value []byte) {
	record := &kgo.Record{Topic: n.settings.topic(topic), Key: []byte(key), Value: value}
	n.kafka.TryProduce(context.Background(), record, func(_ *kgo.Record, err error) {
		if err != nil {
			log.Printf("%s: %v", topic, err)
		}
	})
}

// listen reads a topic from its end, all partitions.
func (n *Node) listen(ctx context.Context, topic string, onRecord func(*Record)) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(n.settings.kafka), kgo.ConsumeTopics(n.settings.topic(topic)),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()), kgo.FetchMaxWait(100*time.Millisecond),
	)
	if err != nil {
		return err
	}
	go func() {
		defer client.Close()
		for ctx.Err() == nil {
			fetches := client.PollFetches(ctx)
			for _, record := range fetches.Records() {
				decoded, err := n.schemas.Decode(record.Value)
				if err != nil {
					log.Printf("%s: %v", topic, err)
					continue
				}
				onRecord(decoded)
			}
		}
	}()
	return nil
}
