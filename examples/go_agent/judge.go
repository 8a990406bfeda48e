package main

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
)

// Whether a request may be served, by the log as far as it was read.

// Routed is what a request says of itself in its headers.
type Routed struct {
	version, epoch, token                         int64
	data, replica, coordinating, session, logHere string
	reads                                         bool
}

// Refusal says why a request is not served; epoch is one that its sender should have read.
type Refusal struct {
	status int
	code   string
	text   string
	epoch  int64
}

func refuse(status int, code string, epoch int64, text string, values ...any) *Refusal {
	return &Refusal{status, code, fmt.Sprintf(text, values...), epoch}
}

// routedOf reads the headers; a GET reads, and so does a request that says so.
func routedOf(request *http.Request) (*Routed, *Refusal) {
	header := request.Header
	found := &Routed{
		data: header.Get("x-stele-data"), replica: header.Get("x-stele-replica"), coordinating: header.Get("x-stele-coordinating"),
		session: header.Get("x-stele-session"), logHere: header.Get("x-stele-log"),
		reads: request.Method == http.MethodGet || header.Get("x-stele-access") == "read",
	}
	for name, number := range map[string]*int64{"version": &found.version, "epoch": &found.epoch, "token": &found.token} {
		given, err := strconv.ParseInt(header.Get("x-stele-"+name), 10, 64)
		if err != nil {
			return nil, refuse(400, "invalid_request", 0, "x-stele-%s is no number: send what the look-up gave", name)
		}
		*number = given
	}
	if found.token == math.MinInt64 {
		return nil, refuse(400, "invalid_request", 0, "x-stele-token is no token of a key: send what the look-up gave")
	}
	for name, given := range map[string]string{"data": found.data, "replica": found.replica} {
		if given == "" {
			return nil, refuse(400, "invalid_request", 0, "the request has no x-stele-%s: send what the look-up gave", name)
		}
	}
	return found, nil
}

// isNewer says whether the sender knows something that must be read here first.
func (s *State) isNewer(asked *Routed) bool {
	return asked.version > s.version || asked.epoch > s.epoch && s.data(asked.data) == nil
}

// refusal is asked before the work, in the turn of its effect.
func (s *State) refusal(node string, asked *Routed) *Refusal {
	if s.isNewer(asked) {
		return refuse(503, "behind", 0, "this node has read the log to epoch %d, not to %d", s.epoch, asked.epoch)
	}
	if fenced := s.fenced(node, asked); fenced != nil {
		return fenced
	}
	row := s.rowAt(asked)
	if row == nil || !slices.Contains(row.serving(asked.reads), node) {
		text := "%s is no replica of token %d in version %d"
		return refuse(409, "not_a_replica", s.epoch, text, node, asked.token, asked.version)
	}
	return nil
}

// serving has the nodes that serve reads, or writes: a node that is only written may not have the data yet.
func (row *Row) serving(reads bool) []string {
	if reads {
		return row.reads
	}
	return row.writes
}

// rowAt is the row by which requests of this version are routed; after a start older ones may be missing.
func (s *State) rowAt(asked *Routed) *Row {
	data := s.data(asked.data)
	if data == nil {
		return nil
	}
	version := asked.version
	for kept := range s.byVersion {
		if s.byVersion[asked.version] == nil && (version == asked.version || kept < version) {
			version = kept // the oldest that is kept: a request that is older and not stale has the same row there
		}
	}
	placement := s.byVersion[version][data.placement]
	if placement == nil {
		placement = s.placements[data.placement]
	}
	return placement.at(asked.token)
}

// fenced is asked again before the answer.
func (s *State) fenced(node string, asked *Routed) *Refusal {
	if oldest := s.oldest(asked); asked.version < oldest {
		text := "version %d is older than version %d of the range, and the fence is at %d"
		return refuse(409, "stale_version", max(s.sinceEpoch, s.fenceEpoch), text, asked.version, oldest, s.fence)
	}
	row := s.nodes[node]
	switch {
	case asked.session != "" && s.ofSession(asked.session) == nil:
		return refuse(409, "session_closed", 0, "session %s is not open", asked.session)
	case asked.coordinating != "" && !s.takesPart(asked.coordinating):
		return refuse(409, "stale_version", s.epoch, "%s is no member, so it coordinates no requests", asked.coordinating)
	case row != nil && (row.Text("state") == "left" || row.Int("excluded_since") > 0):
		return refuse(503, "node_left", 0, "%s has left the cluster, or was declared dead", node)
	}
	return nil
}

// oldest is the version below which a request is stale. A client, whom no barrier waits for, is held to the newest
// change of its range; a member to the newest that is fenced.
func (s *State) oldest(asked *Routed) int64 {
	data := s.data(asked.data)
	if data == nil {
		return max(s.fence, asked.version+1)
	}
	row := s.placements[data.placement].at(asked.token)
	if asked.coordinating == "" {
		return max(row.version, data.placed, data.dropped)
	}
	fenced := func(version, before int64) int64 {
		if version <= s.fence {
			return version
		}
		return before
	}
	return max(fenced(row.version, row.versionBefore), fenced(data.placed, 0), fenced(data.dropped, 0))
}

// unchanged says whether a request of an older version is routed as one of the newest would be.
func (s *State) unchanged(asked *Routed) bool {
	data := s.data(asked.data)
	if data == nil || asked.version < max(data.placed, data.dropped) {
		return false
	}
	return s.placements[data.placement].at(asked.token).version <= asked.version
}
