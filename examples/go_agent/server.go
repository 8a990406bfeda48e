package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
)

// What clients, other nodes and tools ask of this one.

func (n *Node) routes() http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /healthz", n.health)
	routes.HandleFunc("POST /v1/agent/judge", n.judged)
	routes.HandleFunc("POST /v1/agent/holds", n.holds)
	routes.HandleFunc("POST /v1/agent/pages", n.pages)
	routes.HandleFunc("PUT /v1/values/{key...}", n.put)
	routes.HandleFunc("GET /v1/values/{key...}", n.get)
	return routes
}

func (refused *Refusal) answer(to http.ResponseWriter) {
	answer(to, refused.status, map[string]any{
		"code": refused.code, "message": refused.text, "hint": "Read the log to this epoch, and choose the replicas again.",
		"details": map[string]any{"epoch": refused.epoch},
	})
}

func answer(to http.ResponseWriter, status int, body any) {
	to.Header().Set("content-type", "application/json")
	to.WriteHeader(status)
	json.NewEncoder(to).Encode(body)
}

func (n *Node) health(to http.ResponseWriter, _ *http.Request) {
	n.lock.Lock()
	defer n.lock.Unlock()
	status := map[bool]int{true: 200, false: 503}[n.serves()]
	answer(to, status, map[string]any{"ok": n.serves(), "epoch": n.state.epoch})
}

// check says why nothing is served to a sender that follows this log. Under the lock.
func (n *Node) check(logID string) *Refusal {
	if !n.serves() {
		return refuse(503, "not_admitted", 0, "this node is no member now, or cannot read the log")
	}
	if here := hexOf(n.state.logID); logID != "" && logID != here {
		return refuse(409, "other_log", 0, "this node follows log %s", here)
	}
	return nil
}

// serve lets a request's work happen in a turn in which it may, and says whether it may be acknowledged.
func (n *Node) serve(asked *Routed, request *http.Request, work func()) *Refusal {
	n.until(request.Context(), catchUp, func() bool { return !n.state.isNewer(asked) })
	n.lock.Lock()
	refused := n.check(asked.logHere)
	if refused == nil && asked.replica != n.settings.nodeID { // another one may have come to its address
		refused = refuse(421, "other_node", 0, "this is node %s, not %s", n.settings.nodeID, asked.replica)
	}
	if refused == nil {
		refused = n.state.refusal(n.settings.nodeID, asked)
	}
	if refused != nil {
		n.lock.Unlock()
		return refused
	}
	n.requests[asked] = true
	work()
	n.lock.Unlock()
	n.store.sync()
	n.lock.Lock()
	defer n.lock.Unlock()
	delete(n.requests, asked)
	n.wake()
	if refused := n.check(asked.logHere); refused != nil {
		return refused
	}
	return n.state.fenced(n.settings.nodeID, asked)
}

func (n *Node) judged(to http.ResponseWriter, request *http.Request) {
	asked, refused := routedOf(request)
	if refused == nil {
		refused = n.serve(asked, request, func() {})
	}
	if refused != nil {
		refused.answer(to)
		return
	}
	to.WriteHeader(204)
}

// holds says whether there are rows of a range, served or not.
func (n *Node) holds(to http.ResponseWriter, request *http.Request) {
	data := request.Header.Get("x-stele-data")
	start, err := strconv.ParseInt(request.Header.Get("x-stele-start"), 10, 64)
	end, failed := strconv.ParseInt(request.Header.Get("x-stele-end"), 10, 64)
	if err != nil || failed != nil || data == "" {
		refuse(400, "invalid_request", 0, "name a range: x-stele-data, x-stele-start and x-stele-end").answer(to)
		return
	}
	n.lock.Lock()
	found := len(n.store.inRange(data, start, end)) > 0
	n.lock.Unlock()
	to.Write([]byte(map[bool]string{true: "yes", false: "no"}[found]))
}

func (n *Node) put(to http.ResponseWriter, request *http.Request) {
	asked, refused := routedOf(request)
	value, err := io.ReadAll(http.MaxBytesReader(to, request.Body, 1<<20))
	if err != nil {
		refused = refuse(400, "invalid_request", 0, "a value has at most 1 MiB: %v", err)
	}
	if refused == nil {
		row := &Line{Data: asked.data, Token: asked.token, Key: []byte(request.PathValue("key")), Value: value}
		refused = n.serve(asked, request, func() { n.store.write(row) })
	}
	if refused != nil {
		refused.answer(to)
	}
}

func (n *Node) get(to http.ResponseWriter, request *http.Request) {
	asked, refused := routedOf(request)
	value := []byte{}
	if refused == nil {
		key := Key{asked.token, request.PathValue("key")}
		refused = n.serve(asked, request, func() { value = n.store.rows[asked.data][key] })
	}
	if refused != nil {
		refused.answer(to)
		return
	}
	to.Write(value)
}

func (n *Node) pages(to http.ResponseWriter, request *http.Request) {
	ask := &Ask{}
	err := json.NewDecoder(http.MaxBytesReader(to, request.Body, 1<<20)).Decode(ask)
	meant := request.Header.Get("x-stele-replica")
	n.lock.Lock()
	refused := n.check(request.Header.Get("x-stele-log"))
	n.lock.Unlock()
	switch {
	case err != nil:
		refused = refuse(400, "invalid_request", 0, "the body does not ask for pages: %v", err)
	case meant != "" && meant != n.settings.nodeID: // another one may have come to its address
		refused = refuse(421, "other_node", 0, "this is node %s, not %s", n.settings.nodeID, meant)
	}
	var page *Page
	if refused == nil {
		page, refused = n.give(request.Context(), ask)
	}
	if refused != nil {
		refused.answer(to)
		return
	}
	answer(to, 200, page)
}
