package main

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// How the node becomes known: it asks to join under one request id, and says what has changed since.

const (
	sendAgain = 2 * time.Second
	release   = "go_agent-1"
)

// Reasons why nothing was decided that pass.
var notYet = []string{"busy", "not_founded", "frozen", "single_user"}

// admit returns when the process ends; an error is why the node will not be a member.
func (n *Node) admit(ctx context.Context) error {
	outcomes := make(chan *Record, 100)
	err := n.listen(ctx, "outcomes", func(outcome *Record) {
		select {
		case outcomes <- outcome:
		default: // it is asked for again
		}
	})
	if err != nil {
		return err
	}
	n.until(ctx, time.Hour, func() bool { return n.caughtUp })
	if err := n.isNewest(ctx); err != nil {
		return err
	}
	announcement := newUUID(7)
	for ctx.Err() == nil {
		n.lock.Lock()
		id, command, err := n.command(announcement)
		if err == nil && command != nil && command.name == "announce_node" {
			err = n.recognise() // a member serves before it says what has changed
		} else if err == nil && command == nil {
			err = n.recognise()
		}
		n.lock.Unlock()
		if err != nil {
			return err
		}
		if command == nil {
			n.until(ctx, time.Second, func() bool { return false })
			continue
		}
		if err := n.ask(ctx, id, command, outcomes); err != nil {
			return err
		}
	}
	return nil
}

// command is what there is to ask of the cluster; nil: nothing. Under the lock.
func (n *Node) command(announcement string) (string, *Command, error) {
	own, row, settings := n.identity, n.state.nodes[n.settings.nodeID], n.settings
	values := map[string]any{
		"node_id": settings.nodeID, "cluster": settings.cluster, "address": settings.address, "dc": settings.dc,
		"rack": settings.rack, "supported_features": supported, "release_version": release, "host_id": own.HostID,
		"partitioner": "Murmur3Partitioner", "shards": 1,
	}
	switch {
	case row == nil && own.Epoch > 0:
		return "", nil, fmt.Errorf("the log does not know node %s, which it had admitted", settings.nodeID)
	case row == nil && settings.replaces != "":
		values["replaced_id"], values["zero_token"] = settings.replaces, settings.numTokens == 0
		return own.JoinRequestID, &Command{"replace", values}, nil
	case row == nil:
		values["num_tokens"] = settings.numTokens
		return own.JoinRequestID, &Command{"join", values}, nil
	case row.Text("host_id") != own.HostID:
		text := "node %s is host %s in the log, and %s is host %s: restore its directory, or take another name"
		return "", nil, fmt.Errorf(text, settings.nodeID, row.Text("host_id"), settings.folder, own.HostID)
	case row.Text("dc") != settings.dc || row.Text("rack") != settings.rack:
		text := "node %s stands in %s/%s, and was started for %s/%s"
		return "", nil, fmt.Errorf(text, settings.nodeID, row.Text("dc"), row.Text("rack"), settings.dc, settings.rack)
	case row.Text("state") == "left" && !own.WasMember:
		request := n.state.requests[row.Text("request_id")]
		if request == nil || request.Text("status") != "done" {
			return "", nil, fmt.Errorf("node %s did not become a member: take another name and an empty directory", settings.nodeID)
		}
	case row.Text("state") == "left":
	case row.Text("address") != settings.address || row.Text("release_version") != release:
		return announcement, &Command{"announce_node", values}, nil
	}
	return "", nil, nil
}

// recognise opens the node once the log has its row: the first time it notes where. Under the lock.
func (n *Node) recognise() error {
	row, state, own := n.state.nodes[n.settings.nodeID], n.state, n.identity
	member := slices.Contains([]string{"normal", "left"}, row.Text("state"))
	if n.open && own.WasMember == member {
		return nil
	}
	err := own.save(func(i *Identity) {
		i.ClusterID, i.LogID, i.WasMember = state.clusterID, hexOf(state.logID), i.WasMember || member
		if i.Epoch == 0 || i.Epoch < state.createdAt {
			i.Version, i.Fence, i.Epoch, i.StateID = state.version, state.fence, state.epoch, hexOf(state.stateID)
		}
	})
	n.open = n.open || err == nil
	n.wake()
	return err
}

// ask sends a command until it is answered; one id has one outcome, however often it is sent.
func (n *Node) ask(ctx context.Context, id string, command *Command, outcomes chan *Record) error {
	value := n.schemas.Encode("Envelope", map[string]any{
		"request_id": id, "actor": "node " + n.settings.nodeID, "reason": "started", "origin": n.settings.address,
		"command": *command,
	})
	for ctx.Err() == nil {
		n.sendAs("commands", id, value)
		again := time.After(sendAgain)
		for waits := true; waits; {
			select {
			case outcome := <-outcomes:
				if outcome.Text("request_id") == id {
					return n.answered(ctx, outcome)
				}
			case <-again:
				waits = false
			case <-ctx.Done():
				return nil
			}
		}
	}
	return nil
}

func (n *Node) answered(ctx context.Context, outcome *Record) error {
	why := outcome.Record("rejection")
	if outcome.Yes("applied") {
		n.readUpTo(ctx, outcome.Int("epoch"), time.Minute)
		return nil
	}
	if !outcome.Yes("taken") && slices.Contains(notYet, why.Text("code")) {
		n.until(ctx, heartbeat, func() bool { return false })
		return nil
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	if err := n.identity.save(func(i *Identity) { i.JoinRequestID = newUUID(7) }); err != nil {
		return err
	}
	return fmt.Errorf("%s %s (%s)", why.Text("message"), why.Text("hint"), why.Text("code"))
}

// reportLoad tells the balancer what the tablets of this node and its disk hold.
func (n *Node) reportLoad(ctx context.Context) {
	sequence := 0
	for beat := time.Tick(n.settings.loadEvery); ctx.Err() == nil; {
		select {
		case <-beat:
		case <-ctx.Done():
			return
		}
		var disk syscall.Statfs_t
		err := syscall.Statfs(n.settings.folder, &disk)
		n.lock.Lock()
		load := map[string]any{
			"node_id": n.settings.nodeID, "host_id": n.identity.HostID, "boot_id": n.identity.bootID(), "sequence": sequence,
			"epoch": n.state.epoch, "at_ms": time.Now().UnixMilli(), "log_id": []byte(n.state.logID),
			"disk_total_bytes": int64(disk.Blocks) * disk.Bsize, "disk_free_bytes": int64(disk.Bavail) * disk.Bsize,
			"tables": n.tablets(),
		}
		speaks := err == nil && n.serves()
		n.lock.Unlock()
		if speaks {
			sequence++
			n.send("load", "Load", load)
		}
	}
}

// tablets measures those that the node serves reads of. Under the lock.
func (n *Node) tablets() []map[string]any {
	found := []map[string]any{}
	for _, table := range n.state.tables {
		data := n.state.dataOf(table, "table_id")
		if table.Text("placement") == "" || data.dropped > 0 {
			continue
		}
		places, sizes := []int64{}, []int64{}
		for at, row := range n.state.placements[data.placement] {
			if slices.Contains(row.reads, n.settings.nodeID) {
				places = append(places, int64(at))
				sizes = append(sizes, n.store.sizeOf(data.id, row.start, row.end))
			}
		}
		if len(places) > 0 {
			found = append(found, map[string]any{
				"data_id": data.id, "tablet_count": len(n.state.placements[data.placement]), "tablets": places,
				"sizes_bytes": sizes, "reads_per_s": []int64{}, "writes_per_s": []int64{}, "lower_half_per_s": []int64{},
			})
		}
	}
	return found
}
