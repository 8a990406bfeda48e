"""Examples of each command, for its help and for the reference.

A line is a complete command line; it belongs to the command that it begins with. A test parses each
of them.
"""

from typing import Final

_LINES: Final = """\
stele status
stele status --epoch 120
stele nodes
stele nodes -o csv
stele ring library
stele ring library --key k1
stele requests --unfinished
stele requests --node n4 --since 2h
stele request show 01a226f2
stele request show 01a226f2 --json
stele request follow 01a226f2
stele request follow 01a226f2 --timeout 120
stele why
stele why 01a226f2
stele epochs --limit 50
stele epochs --about n4 --since 2h
stele epoch show 120
stele epoch show 120 --json
stele diff 120 140
stele diff 120 140 --json
stele watch
stele watch --from 120 --count 10
stele console
stele console --open
stele state export state.json
stele state export state.avro --epoch 120
stele state check state.json
stele state check state.json --json
stele found --reason "a new cluster"
stele found --from state.json
stele unsafe revert --to 120 --dry-run
stele unsafe revert --to 120 --reason "wrong drop" --i-know-what-this-does
stele unsafe load state.json --dry-run
stele unsafe load state.json --reason "edited" --i-know-what-this-does
stele import describe 10.0.0.5 --output legacy.json
stele import describe 10.0.0.5:9142 --output legacy.json --timeout 60
stele import read --contact 10.0.0.5 --output state.json
stele import read --file legacy.json --output state.json --without test
stele recover --dry-run
stele recover --reason "topic deleted"
stele join http://10.0.0.9:7000
stele join http://10.0.0.9:7000 --rack r2 --reason "more room"
stele replace n3 http://10.0.0.9:7000
stele replace n3 http://10.0.0.9:7000 --reason "disk failed"
stele decommission n3
stele decommission n3 --reason "old hardware" --no-wait
stele move n3
stele move n3 --tokens=-100,0,100
stele rebuild n3
stele rebuild n3 --source-dc dc2
stele remove n3
stele remove n3 n4 --reason "rack lost"
stele exclude n3
stele exclude n3 n4 --reason "rack lost"
stele plan decommission n3
stele plan --file cluster.json
stele plan --file - --json
stele plan join http://10.0.0.9:7000
stele plan replace n3 http://10.0.0.9:7000
stele plan move n3
stele plan rebuild n3
stele plan remove n3
stele plan exclude n3
stele plan alter-keyspace library --replication dc1=2
stele plan drop-keyspace library
stele plan drop-table library.books
stele plan move-tablet library.books 3 --from n1 --to n4
stele plan add-replica library.books 3 --to n4
stele plan delete-replica library.books 3 --from n1
stele plan resize-table library.books 16
stele plan repair-table library.books
stele plan snapshot-table library.books --tag monday
stele plan restore-table library.books --tag monday
stele plan restore-tablet library.books 3
stele plan truncate library.books
stele plan new-cdc-generation
stele cancel 01a226f2
stele cancel 01a226f2 --reason "wrong node"
stele cleanup
stele cleanup --node n3
stele truncate library.books
stele truncate library.books --yes --reason "test data"
stele quiesce
stele quiesce --timeout 120
stele noop
stele noop --reason "after the upgrade"
stele cdc generations
stele cdc generations --json
stele cdc streams
stele cdc streams --token 0
stele cdc new-generation
stele cdc new-generation --force
stele cdc tail library.books
stele cdc tail library.books --count 10
stele cdc tail library.books --no-follow --json
stele keyspace create library --replication dc1=3
stele keyspace create library --replication dc1=3 --replication dc2=3 --tablets
stele keyspace alter library --replication dc2=3
stele keyspace alter library --replication dc1=r1,r2,r3
stele keyspace drop library
stele keyspace drop library --yes --reason "moved"
stele keyspace list
stele keyspace list -o yaml
stele schema show
stele schema show library --epoch 120
stele schema export
stele schema export library
stele schema plan wanted.cql
stele schema plan wanted.cql --save plan.json
stele schema diff 120
stele schema diff 120 140 --name library
stele schema history
stele schema history library.books --limit 50
stele schema apply changes.cql
stele schema apply changes.cql --dry-run
stele schema agreement
stele schema agreement -o json
stele table create library.books
stele table create library.loans --colocate-with library.books
stele table alter library.books --min-tablet-count 16
stele table alter library.books --reset min_tablet_count
stele table drop library.books
stele table drop library.books --yes
stele table list
stele table list --epoch 120
stele table resize library.books 16
stele table resize library.books 8 --reason "little data"
stele table repair library.books
stele table repair library.books --tablet 3
stele table snapshot library.books
stele table snapshot library.books --tag monday --expire 7d
stele table snapshots
stele table snapshots -o wide
stele table restore library.books --tag monday
stele table restore library.books --tag monday --no-wait
stele tablet list library.books
stele tablet list library.books --key k1
stele tablet show library.books 3
stele tablet show library.books 3 --json
stele tablet sizes library.books
stele tablet sizes library.books --hottest --limit 5
stele tablet repairs library.books
stele tablet repairs library.books --limit 0
stele tablet move library.books 3 --from n1 --to n4
stele tablet move library.books 3 --from n1 --to n1:2
stele tablet add-replica library.books 3 --to n4
stele tablet add-replica library.books 3 --to n4:1
stele tablet delete-replica library.books 3 --from n1
stele tablet delete-replica library.books 3 --from n1:2
stele tablet restore library.books 3
stele tablet restore library.books 3 --no-wait
stele balance status
stele balance status --json
stele balance plan
stele balance plan --json
stele balance why library.books 3
stele balance why library.books 3 --json
stele balance off
stele balance off library.books --for 2h --reason "import"
stele balance on
stele balance on library.books
stele balance history
stele balance history library.books --since 2h
stele features list
stele features list --json
stele features enable schema_objects
stele features enable archive_upkeep report_sources
stele features forget coordinator/c-1
stele features forget coordinator/c-1 --reason "host removed"
stele settings list
stele settings list -o wide
stele settings set stream_mib_per_s 50
stele settings set stream_mib_per_s 50 --reason "office hours"
stele settings reset stream_mib_per_s
stele settings reset stream_mib_per_s --reason "night"
stele id
stele id --after 1795949473121
stele token ada callers.txt
stele token ada callers.txt --may read
stele put library.books k1 "a value"
stele put shop.users ada '{"name": "Ada"}'
stele get library.books k1
stele get library.books k1 --consistency all
stele delete library.books k1
stele delete library.books k1 --consistency all
stele log tail --limit 50
stele log tail --follow
stele log search --actor ada --since 2h
stele log search --about n4 --fact NodeChanged
stele log stats
stele log stats --all
stele log replay
stele log replay --epoch 120
stele log verify
stele log verify --topic
stele log snapshot
stele log snapshot --timeout 120
stele log truncate --dry-run
stele log truncate
stele log readers
stele log readers --json
stele log readers forget spark-1
stele log readers forget spark-1 --reason "job deleted"
stele log freeze --reason "restore"
stele log freeze --reason "restore" --actor ada
stele log single-user ada
stele log single-user ada --reason "restore"
stele log thaw
stele log thaw --reason "restored"
stele catch-up show
stele catch-up show --json
stele catch-up reconfigure dc1=3
stele catch-up reconfigure --cancel
stele catch-up forget c4
stele catch-up forget c4 --force
stele sql --examples
stele sql "SELECT node_id, dc, node_state FROM nodes"
stele sql --example longest-operations
stele backup s3://bucket/stele
stele backup /mnt/backup --check
stele backup verify s3://bucket/stele
stele backup verify /mnt/backup
stele restore s3://bucket/stele --into /var/lib/stele
stele restore /mnt/backup --into /var/lib/stele
stele stack up
stele stack up --detach --nodes 4 --without placements
stele stack status
stele stack status --json
stele stack logs n1
stele stack logs coordinator --lines 100
stele stack env
stele stack env --dir .stele
stele stack down
stele stack down --purge
stele stack stop n1
stele stack stop coordinator
stele stack start n1
stele stack start coordinator
stele stack restart n1
stele stack restart coordinator
stele stack kill n1
stele stack kill coordinator
stele stack add-node
stele stack add-node --rack r2 --no-join
stele stack remove n4
stele stack remove n4 --force
stele sim run --seed 7
stele sim run --seed 7 --shrink
stele sim sweep --seeds 0..99
stele sim sweep --seeds 0..999 --jobs 4
stele sim mutants --list
stele sim mutants --most 20
stele sim live --minutes 10
stele sim live --minutes 10 --seed 7
stele completion
stele completion bash --print
stele conformance ./my-agent
stele conformance ./my-agent --json
stele demo
stele demo --keep
stele drill
stele drill --report drill.json
"""

LINES: Final = tuple(_LINES.splitlines())
RATE: Final = "--rate 50000000"


def examples(*words: str) -> list[str]:
    """Return the examples of a command, such as ``examples("stack", "up")``."""
    begin = ("stele", *words)
    found = [line for line in LINES if tuple(line.split()[: len(begin)]) == begin]
    if words[:1] == ("plan",) and len(words) > 1:
        found += [f"{line} {RATE}" for line in found]
    return found
