package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
)

// What the log says, as far as it was read: only those facts are kept that an agent has to know.

const minToken = math.MinInt64 // as the end of a range: above all tokens

// Row is one range (start, end] of a placement; it never changes.
type Row struct {
	start, end             int64
	version, versionBefore int64
	reads, writes          []string
}

// Placement has its rows in the order of the ring; a change makes another one.
type Placement []*Row

func (p Placement) at(token int64) *Row {
	if token == minToken {
		return p[len(p)-1]
	}
	after := sort.Search(len(p), func(i int) bool { return p[i].start >= token })
	return p[after-1]
}

type PlanRow struct {
	start, end int64
	old, new   []string
}

type Transition struct {
	id, kind, session, mark string
	keyspaceID, tableID     string
	enteredVersion          int64
	requests                []string
	plans                   map[string][]PlanRow
}

// Data is what a keyspace or a table holds; a truncation gives it another id.
type Data struct {
	id, placement   string
	placed, dropped int64
}

type State struct {
	epoch, version, fence, sinceEpoch, fenceEpoch, term int64
	createdAt                                           int64 // the newest epoch that created or truncated data
	stateID, logID                                      string
	stateIDs                                            []string // of each epoch, from 0
	clusterID                                           string
	nodes, requests, keyspaces, tables                  map[string]*Record
	numbers                                             []string
	placements                                          map[string]Placement
	transitions                                         map[string]*Transition
	staged                                              []any
	byVersion                                           map[int64]map[string]Placement // from the fence on
}

func newState() *State {
	return &State{
		version: 1, fence: 1, // as a log is founded
		stateID: string(make([]byte, 16)), stateIDs: []string{string(make([]byte, 16))},
		nodes: map[string]*Record{}, requests: map[string]*Record{}, keyspaces: map[string]*Record{},
		tables: map[string]*Record{}, placements: map[string]Placement{}, transitions: map[string]*Transition{},
		byVersion: map[int64]map[string]Placement{},
	}
}

// supported has the features of a new cluster. Facts of archive_upkeep and of schema_objects are passed over: this
// store keeps keys and values, and has no columns. Sources may stay empty.
var supported = []string{"archive_upkeep", "report_sources", "schema_objects"}

// apply makes a winner's facts true. An error ends the process: what it does not understand it must not pass over.
func (s *State) apply(epoch *Record) (err error) {
	defer func() {
		if broken := recover(); broken != nil {
			err = fmt.Errorf("epoch %d cannot be applied: %v", s.epoch+1, broken)
		}
	}()
	for _, feature := range epoch.Texts("required_features") {
		if !slices.Contains(supported, feature) {
			return fmt.Errorf("epoch %d needs a feature that this agent does not have: %s", s.epoch+1, feature)
		}
	}
	for _, fact := range epoch.List("facts") {
		s.fact(fact.(*Record))
	}
	s.epoch++
	s.stateID, s.logID = string(epoch.Bytes("state_id")), string(epoch.Bytes("log_id"))
	s.stateIDs = append(s.stateIDs, s.stateID)
	kept := map[string]Placement{}
	for name, placement := range s.placements {
		kept[name] = placement
	}
	s.byVersion[s.version] = kept
	for version := range s.byVersion {
		if version < s.fence {
			delete(s.byVersion, version)
		}
	}
	return nil
}

func (s *State) fact(fact *Record) {
	switch fact.Name {
	case "ClusterCreated":
		s.clusterID = fact.Text("cluster_id")
	case "LogRecovered", "StateReplaced":
		panic(fact.Name + ": this agent begins with the log's first record, and follows no other state")
	case "NodeChanged":
		s.nodes[fact.Record("node").Text("node_id")] = fact.Record("node")
	case "RequestChanged":
		s.requests[fact.Record("request").Text("request_id")] = fact.Record("request")
	case "RequestForgotten":
		delete(s.requests, fact.Text("request_id"))
	case "KeyspaceChanged":
		s.changeOwner(s.keyspaces, fact.Record("keyspace"), "keyspace_id")
	case "KeyspaceDropped":
		delete(s.keyspaces, fact.Text("keyspace_id"))
	case "TableChanged":
		s.changeOwner(s.tables, fact.Record("table"), "table_id")
	case "TableDropped":
		delete(s.tables, fact.Text("table_id"))
	case "NodeNumbered":
		s.numbers = append(s.numbers, fact.Text("node_id"))
	case "PlacementChanged":
		name := fact.Text("placement")
		s.placements[name] = changed(s.placements[name], fact, s.numbers)
	case "PlacementDropped":
		delete(s.placements, fact.Text("placement"))
	case "VersionsChanged":
		to := fact.Record("versions")
		s.version, s.fence = to.Int("version"), to.Int("fence_version")
		s.sinceEpoch, s.fenceEpoch = to.Int("since_epoch"), to.Int("fence_epoch")
	case "CoordinatorChanged":
		s.term = fact.Record("coordinator").Int("term")
	case "Part":
		if fact.Int("index") == 0 {
			s.staged = nil
		}
		s.staged = append(s.staged, fact.List("facts")...)
	case "PartsCommitted":
		staged := s.staged
		s.staged = nil
		for _, each := range staged {
			s.fact(each.(*Record))
		}
	default:
		s.transitionFact(fact)
	}
}

func (s *State) transitionFact(fact *Record) {
	open := s.transitions[fact.Text("transition_id")]
	switch fact.Name {
	case "TransitionOpened":
		opened := opened(fact.Record("transition"))
		s.transitions[opened.id] = opened
	case "TransitionMoved":
		open.session, open.enteredVersion = fact.Text("session"), fact.Int("entered_version")
	case "TransitionMarked":
		open.mark = fact.Text("mark")
	case "TransitionPlanned":
		name := fact.Text("placement")
		open.plans[name] = append(open.plans[name], planRows(fact.Record("plan"))...)
	case "TransitionUnplanned":
		delete(open.plans, fact.Text("placement"))
	case "TransitionFinished":
		delete(s.transitions, fact.Text("transition_id"))
	}
}

func opened(from *Record) *Transition {
	found := &Transition{
		id: from.Text("transition_id"), kind: from.Text("kind"), session: from.Text("session"),
		mark: from.Text("mark"), keyspaceID: from.Text("keyspace_id"), tableID: from.Text("table_id"),
		enteredVersion: from.Int("entered_version"), plans: map[string][]PlanRow{},
	}
	for _, subject := range from.List("subjects") {
		found.requests = append(found.requests, subject.(*Record).Text("request_id"))
	}
	for name, plan := range from.Map("plans") {
		found.plans[name] = planRows(plan.(*Record))
	}
	return found
}

func planRows(plan *Record) []PlanRow {
	rows := []PlanRow{}
	for _, each := range plan.List("rows") {
		row := each.(*Record)
		rows = append(rows, PlanRow{row.Int("start"), row.Int("end"), row.Texts("old"), row.Texts("new")})
	}
	return rows
}

// column reads numbers: a byte that says how many bytes one has, then the numbers, the least significant byte first.
func column(raw []byte) []int64 {
	if len(raw) == 0 {
		return nil
	}
	width, found := int(raw[0]), make([]int64, 0, len(raw))
	for at := 1; at+width <= len(raw); at += width {
		var eight [8]byte
		copy(eight[:], raw[at:at+width])
		shift := 64 - 8*width
		found = append(found, int64(binary.LittleEndian.Uint64(eight[:]))<<shift>>shift)
	}
	return found
}

func changed(before Placement, fact *Record, numbers []string) Placement {
	removed := map[int64]bool{}
	for _, start := range column(fact.Record("removed").Bytes("starts")) {
		removed[start] = true
	}
	after := Placement{}
	for _, row := range before {
		if !removed[row.start] {
			after = append(after, row)
		}
	}
	after = append(after, unpacked(fact.Record("added"), numbers)...)
	sort.Slice(after, func(i, j int) bool { return after[i].start < after[j].start })
	end := int64(minToken)
	for _, row := range after {
		if row.start != end {
			panic(fmt.Sprintf("the rows of %s do not cover the ring at %d", fact.Text("placement"), end))
		}
		end = row.end
	}
	return after
}

func unpacked(added *Record, numbers []string) Placement {
	of := func(name string) []int64 { return column(added.Bytes(name)) }
	ends, versions, before := of("ends"), of("versions"), of("versions_before")
	writes, reads, others, nodes := of("writes"), of("reads"), of("others"), of("nodes")
	next := func(count int64) []string {
		taken := []string{}
		for _, number := range nodes[:count] {
			taken = append(taken, numbers[number])
		}
		nodes = nodes[count:]
		return taken
	}
	rows := Placement{}
	for at, start := range of("starts") {
		row := &Row{start: start, end: ends[at], version: versions[at], versionBefore: before[at]}
		row.writes = next(writes[at])
		if reads[at] < 0 { // listed by themselves
			row.reads = next(-reads[at])
		} else {
			row.reads = row.writes[:reads[at]]
		}
		next(others[at])
		rows = append(rows, row)
	}
	return rows
}

// changeOwner notes when the keyspace or table has data of a new id: it was created, or truncated.
func (s *State) changeOwner(owners map[string]*Record, owner *Record, idField string) {
	before := owners[owner.Text(idField)]
	if before == nil || before.Int("truncated_version") != owner.Int("truncated_version") {
		s.createdAt = s.epoch + 1 // it counts this epoch once all its facts are true
	}
	owners[owner.Text(idField)] = owner
}

// data says whose data this is; nil when it was dropped or truncated away, or is not known yet.
func (s *State) data(id string) *Data {
	owner, _, _ := strings.Cut(id, "@")
	found := (*Data)(nil)
	if keyspace := s.keyspaces[owner]; keyspace != nil && !keyspace.Yes("tablets") {
		found = s.dataOf(keyspace, "keyspace_id")
	} else if table := s.tables[owner]; table != nil {
		found = s.dataOf(table, "table_id")
	}
	if found == nil || found.id != id {
		return nil
	}
	return found
}

func (s *State) dataOf(owner *Record, idField string) *Data {
	found := &Data{
		id: owner.Text(idField), placement: owner.Text("placement"),
		placed: owner.Int("placed_version"), dropped: owner.Int("dropped_version"),
	}
	if truncated := owner.Int("truncated_version"); truncated > 0 {
		found.id = fmt.Sprintf("%s@%d", found.id, truncated)
	}
	if keyspace := s.keyspaces[owner.Text("keyspace_id")]; idField == "table_id" && keyspace != nil {
		found.dropped = max(found.dropped, keyspace.Int("dropped_version"))
		if found.placement == "" {
			found.placement, found.placed = keyspace.Text("placement"), keyspace.Int("placed_version")
		}
	}
	return found
}

// using lists the data that a placement places.
func (s *State) using(placement string) []*Data {
	found := []*Data{}
	for _, keyspace := range s.keyspaces {
		if data := s.dataOf(keyspace, "keyspace_id"); !keyspace.Yes("tablets") && data.placement == placement {
			found = append(found, data)
		}
	}
	for _, table := range s.tables {
		if data := s.dataOf(table, "table_id"); data.placement == placement {
			found = append(found, data)
		}
	}
	return found
}

func (s *State) ofSession(session string) *Transition {
	for _, open := range s.transitions {
		if session != "" && open.session == session {
			return open
		}
	}
	return nil
}

func (s *State) excluded(node string) bool {
	row := s.nodes[node]
	return row == nil || row.Int("excluded_since") > 0
}

// lastExclusion is the epoch that excluded a node last; 0: none did.
func (s *State) lastExclusion() int64 {
	last := int64(0)
	for _, row := range s.nodes {
		last = max(last, row.Int("excluded_since"))
	}
	return last
}

// takesPart says whether a node routes requests and must therefore acknowledge every step.
func (s *State) takesPart(node string) bool {
	row := s.nodes[node]
	return row != nil && !s.excluded(node) && !slices.Contains([]string{"none", "left", "removing"}, row.Text("state"))
}

// resizing lists the open requests that split or merge tablets.
func (s *State) resizing() []string {
	found := []string{}
	for id, request := range s.requests {
		open := slices.Contains([]string{"pending", "running"}, request.Text("status"))
		if open && request.Text("kind") == "tablet_resize" {
			found = append(found, id)
		}
	}
	slices.Sort(found)
	return found
}

func overlap(start, end, otherStart, otherEnd int64) bool {
	return (end == minToken || otherStart < end) && (otherEnd == minToken || start < otherEnd)
}
