package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sort"
	"strings"
	"time"
)

// What orders ask for: to pull rows from other nodes, and to delete rows.

const (
	pageRows  = 500
	pageBytes = 2 << 20
	batchRows = 200
	tries     = 3
)

// Piece is a range of some data that is pulled: from as many of the sources as are needed.
type Piece struct {
	placement  string
	start, end int64
	sources    []string
	needed     int
}

type PieceKey struct {
	placement  string
	start, end int64
}

// Ask is what a node asks of a source: rows of (Start, End] behind After.
type Ask struct {
	Epoch   int64  `json:"epoch"`
	Session string `json:"session"`
	Data    string `json:"data"`
	Start   int64  `json:"start"`
	End     int64  `json:"end"`
	After   *Line  `json:"after"`
}

type Page struct {
	Rows []*Line `json:"rows"`
	More bool    `json:"more"`
}

// stream pulls what the order's transition gives this node, and merges it.
func (n *Node) stream(ctx context.Context, running *Running) error {
	order := running.order
	n.lock.Lock()
	if n.state.ofSession(order.session) == nil {
		n.lock.Unlock()
		return notOpen(order)
	}
	n.enter(order.session)
	n.lock.Unlock()
	defer n.leave(order.session)
	for failed := map[string]bool{}; ; {
		pieces, err := n.pieces(order, failed)
		if err != nil || len(pieces) == 0 {
			return err
		}
		for _, piece := range pieces {
			if err := n.pull(ctx, running, piece, failed); err != nil {
				return err
			}
		}
	}
}

// pieces lists what is to be pulled and was not yet.
func (n *Node) pieces(order *Order, failed map[string]bool) ([]*Piece, error) {
	n.lock.Lock()
	defer n.lock.Unlock()
	transition, found := n.state.ofSession(order.session), []*Piece{}
	if transition == nil {
		return nil, notOpen(order)
	}
	for session := range n.done {
		if n.state.ofSession(session) == nil {
			delete(n.done, session)
		}
	}
	for name, rows := range transition.plans {
		for _, row := range rows {
			sources, needed, receives := n.sources(transition, row)
			if !receives || n.done[order.session][PieceKey{name, row.start, row.end}] {
				continue
			}
			asked := slices.DeleteFunc(slices.Clone(sources), func(node string) bool {
				return failed[node] || n.state.excluded(node)
			})
			if len(asked) < needed {
				text := "(%d, %d] needs %d of %s, and not so many gave their data"
				return nil, fmt.Errorf(text, row.start, row.end, needed, strings.Join(sources, ", "))
			}
			found = append(found, &Piece{name, row.start, row.end, asked, needed})
		}
	}
	return found, nil
}

// sources says from whom, and from how many of them, a row is to be pulled. Under the lock.
func (n *Node) sources(transition *Transition, row PlanRow) (from []string, needed int, receives bool) {
	own := n.settings.nodeID
	without := func(these, those []string) []string {
		return slices.DeleteFunc(slices.Clone(these), func(node string) bool { return slices.Contains(those, node) })
	}
	coming, leaving := without(row.new, row.old), without(row.old, row.new)
	others := without(row.old, []string{own})
	blocking := len(row.old) - (len(row.old)/2 + 1) + 1 // so many of them have every acknowledged write between them
	if len(row.old) == 0 {
		blocking = 0
	}
	switch request := n.state.requests[transition.id]; transition.kind {
	case "tablet_repair", "tablet_restore": // every other replica's rows
		return others, len(others), slices.Contains(row.old, own)
	case "rebuild":
		dc := request.Text("source_dc")
		others = slices.DeleteFunc(others, func(node string) bool {
			return dc != "" && n.state.nodes[node].Text("dc") != dc
		})
		if request.Yes("force") {
			blocking = min(blocking, len(others))
		}
		return others, blocking, request.Text("node_id") == own
	}
	if at := slices.Index(coming, own); at >= 0 && len(coming) == len(leaving) && !n.state.excluded(leaving[at]) {
		return leaving[at : at+1], 1, true // it takes over from one that leaves, and then holds what that one held
	}
	needed = blocking
	if slices.Contains(row.old, own) {
		needed--
	}
	if n.isForced(transition) { // what only dead nodes have is given up
		needed = min(needed, len(slices.DeleteFunc(slices.Clone(others), n.state.excluded)))
	}
	fewer := len(row.new) < len(row.old) && slices.Contains(row.new, own)
	return others, needed, fewer || slices.Contains(coming, own)
}

func (n *Node) isForced(transition *Transition) bool {
	for _, id := range transition.requests {
		if request := n.state.requests[id]; request == nil || !request.Yes("force") {
			return false
		}
	}
	return len(transition.requests) > 0
}

// pull reads as many sources through as a piece needs; one that gives nothing is in failed afterwards.
func (n *Node) pull(ctx context.Context, running *Running, piece *Piece, failed map[string]bool) error {
	missing := piece.needed
	for _, source := range piece.sources {
		if missing == 0 || failed[source] {
			continue
		}
		whole, err := n.pullFrom(ctx, running, piece, source)
		if err != nil {
			return err
		}
		if failed[source] = !whole; whole {
			missing--
		}
	}
	if missing > 0 {
		return nil // the next round asks whether those who are left are enough
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	session := running.order.session
	if n.done[session] == nil {
		n.done[session] = map[PieceKey]bool{}
	}
	n.done[session][PieceKey{piece.placement, piece.start, piece.end}] = true
	return nil
}

func (n *Node) pullFrom(ctx context.Context, running *Running, piece *Piece, source string) (bool, error) {
	order := running.order
	n.lock.Lock()
	address, all := n.state.nodes[source].Text("address"), n.state.using(piece.placement)
	n.lock.Unlock()
	for _, data := range all {
		if data.dropped > 0 {
			continue
		}
		ask := &Ask{order.epoch, order.session, data.id, piece.start, piece.end, nil}
		for more := true; more; {
			page := n.page(ctx, source, address, ask)
			if page == nil {
				return false, ctx.Err()
			}
			if err := n.merge(running, data.id, page.Rows); err != nil {
				return false, err
			}
			if more = page.More && len(page.Rows) > 0; more {
				ask.After = page.Rows[len(page.Rows)-1]
				ask.After.Value = nil
			}
		}
	}
	return true, nil
}

// merge takes rows in, if the session is open in this turn and the data has not been truncated away.
func (n *Node) merge(running *Running, data string, rows []*Line) error {
	n.lock.Lock()
	defer n.lock.Unlock()
	if n.state.ofSession(running.order.session) == nil {
		return notOpen(running.order)
	}
	if n.state.data(data) == nil {
		return nil
	}
	for _, row := range rows {
		running.bytesDone += int64(len(row.Key) + len(row.Value))
		row.Data, row.Deleted = data, false
	}
	running.keys += int64(len(rows))
	n.store.write(rows...)
	return nil
}

// page asks a source, some times; nil: it gives nothing.
func (n *Node) page(ctx context.Context, source, address string, ask *Ask) *Page {
	body, _ := json.Marshal(ask)
	for try := range tries {
		if try > 0 {
			time.Sleep(200 * time.Millisecond)
		}
		request, err := http.NewRequestWithContext(ctx, "POST", address+"/v1/agent/pages", bytes.NewReader(body))
		if err != nil {
			return nil
		}
		request.Header.Set("x-stele-replica", source)
		n.lock.Lock()
		request.Header.Set("x-stele-log", hexOf(n.state.logID))
		n.lock.Unlock()
		answer, err := (&http.Client{Timeout: 15 * time.Second}).Do(request)
		if err != nil {
			continue
		}
		page := &Page{}
		err = json.NewDecoder(answer.Body).Decode(page)
		answer.Body.Close()
		if answer.StatusCode == 200 && err == nil {
			return page
		}
	}
	return nil
}

// give answers another node. What it holds that is acknowledged before the session's version is all there: the
// order's epoch was read, and this node's older requests have ended.
func (n *Node) give(ctx context.Context, ask *Ask) (*Page, *Refusal) {
	n.readUpTo(ctx, ask.Epoch, catchUp)
	n.until(ctx, catchUp, func() bool {
		open := n.state.ofSession(ask.Session)
		return open == nil || n.oldestInUse() >= open.enteredVersion
	})
	n.lock.Lock()
	defer n.lock.Unlock()
	open := n.state.ofSession(ask.Session)
	switch {
	case n.state.epoch < ask.Epoch:
		return nil, refuse(503, "behind", 0, "this node has read the log to epoch %d, not to %d", n.state.epoch, ask.Epoch)
	case open == nil:
		return nil, refuse(409, "session_closed", 0, "session %s is not open", ask.Session)
	case n.oldestInUse() < open.enteredVersion:
		return nil, refuse(503, "behind", 0, "requests of version %d are under way", n.oldestInUse())
	}
	rows := slices.DeleteFunc(n.store.inRange(ask.Data, ask.Start, ask.End), func(row *Line) bool {
		return ask.After != nil && !before(ask.After, row)
	})
	return pageOf(rows), nil
}

// pageOf is the first of the rows, as many as the bounds allow; at least one, however large that is.
func pageOf(rows []*Line) *Page {
	sort.Slice(rows, func(i, j int) bool { return before(rows[i], rows[j]) })
	size := 0
	for given, row := range rows {
		size += len(row.Key) + len(row.Value)
		if given > 0 && (given == pageRows || size > pageBytes) {
			return &Page{rows[:given], true}
		}
	}
	return &Page{rows, false}
}

func before(one, other *Line) bool {
	if one.Token != other.Token {
		return one.Token < other.Token
	}
	return bytes.Compare(one.Key, other.Key) < 0
}

// deleteAll deletes what is not the node's any more, a batch in each turn, by what the log says in that turn.
func (n *Node) deleteAll(ctx context.Context, running *Running) error {
	for {
		n.lock.Lock()
		if !n.wanted(running.order) {
			n.lock.Unlock()
			return notOpen(running.order)
		}
		doomed := n.doomed(running.order)
		for _, row := range doomed {
			running.bytesDone += int64(len(row.Key) + len(row.Value))
			row.Value, row.Deleted = nil, true
		}
		running.keys += int64(len(doomed))
		n.store.write(doomed...)
		n.lock.Unlock()
		if len(doomed) == 0 {
			return ctx.Err()
		}
	}
}

// doomed lists rows that the order asks to delete, some at a time. Under the lock.
func (n *Node) doomed(order *Order) []*Line {
	transition, found := n.state.ofSession(order.session), []*Line{}
	for id, rows := range n.store.rows {
		data := n.state.data(id)
		for key, value := range rows {
			if len(found) == batchRows {
				return found
			}
			if n.isDoomed(order, transition, id, data, key.Token) {
				found = append(found, &Line{Data: id, Token: key.Token, Key: []byte(key.Key), Value: value})
			}
		}
	}
	return found
}

func (n *Node) isDoomed(order *Order, transition *Transition, id string, data *Data, token int64) bool {
	owner, _, _ := strings.Cut(id, "@")
	own := n.settings.nodeID
	if order.kind == "truncate" {
		return data == nil && (owner == transition.tableID || transition.tableID == "" && owner == transition.keyspaceID)
	}
	if data == nil {
		return transition == nil
	}
	if slices.Contains(n.state.placements[data.placement].at(token).writes, own) {
		return false
	}
	inPlan := func(of *Transition, gives func(PlanRow) bool) bool {
		return slices.ContainsFunc(of.plans[data.placement], func(row PlanRow) bool {
			return row.start < token && (row.end == minToken || token <= row.end) && gives(row)
		})
	}
	if transition != nil { // of a tablet: its plan's ranges alone
		return inPlan(transition, func(PlanRow) bool { return true })
	}
	for _, open := range n.state.transitions { // what a plan is about to give it stays
		isGiven := func(row PlanRow) bool {
			if open.mark != "" {
				return slices.Contains(row.old, own)
			}
			return slices.Contains(row.new, own)
		}
		if inPlan(open, isGiven) {
			return false
		}
	}
	return true
}
