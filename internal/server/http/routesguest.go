package http

import (
	"fmt"
	"net/http"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// guestRoutes are the routes about daemon, host and guest.
func guestRoutes() []route {
	return []route{
		{
			Operation: Operation{
				ID: "getVersion", Method: http.MethodGet, Path: "/version",
				Summary: "Report the daemon's version; this path belongs to no protocol version",
				Answers: jsonOf(api.Version{}),
			},
			serve: plainHandler((*server).getVersion),
		},
		{
			Operation: Operation{
				ID: "getMetrics", Method: http.MethodGet, Path: "/metrics",
				Summary: "The counters of guest and probes for Prometheus; OpenMetrics if Accept asks for it",
				Answers: []Answer{{Status: http.StatusOK, Of: "", Media: []string{mediaText, mediaMetrics}, Name: "Metrics", Description: "metrics"}},
			},
			serve: plainHandler((*server).getMetrics),
		},
		{
			Operation: Operation{
				ID: "getHost", Method: http.MethodGet, Path: "/v1/host",
				Summary: "The result of calibrating this machine's KVM",
				Answers: jsonOf(api.Host{}),
			},
			serve: plainHandler((*server).getHost),
		},
		{
			Operation: Operation{
				ID: "getDaemon", Method: http.MethodGet, Path: "/v1/daemon",
				Summary: "The resources that the daemon's process uses; runs a garbage collection",
				Answers: jsonOf(api.Daemon{}),
			},
			serve: plainHandler((*server).getDaemon),
		},
		{
			Operation: Operation{
				ID: "getFleet", Method: http.MethodGet, Path: "/v1/fleet",
				Summary: "The daemon's state in its fleet",
				Query: []Parameter{
					{Name: "revision", Kind: Number, Description: "wait up to 20 s until the daemon has applied the fleet's definitions up to this revision; the answer's revision is the one reached", base: 10, wrong: "want a number"},
				},
				Answers:  []Answer{{Status: http.StatusOK, Of: api.FleetState{}, Example: exampleFleet}},
				Refusals: []int{400, 503},
			},
			serve: (*server).getFleet,
		},
		{
			Operation: Operation{
				ID: "getGuest", Method: http.MethodGet, Path: "/v1/guest",
				Summary: "The guest's state, vCPUs and counters",
				Answers: jsonOf(api.Guest{}),
			},
			serve: plainHandler((*server).getGuest),
		},
		{
			Operation: Operation{
				ID: "pauseGuest", Method: http.MethodPost, Path: "/v1/guest/pause",
				Summary:  "Take every vCPU out of guest mode; may be repeated",
				Answers:  jsonOf(api.Guest{}),
				Refusals: []int{409},
			},
			serve: plainHandler((*server).pauseGuest),
		},
		{
			Operation: Operation{
				ID: "resumeGuest", Method: http.MethodPost, Path: "/v1/guest/resume",
				Summary:  "Let the guest and its stopped vCPUs run; may be repeated",
				Body:     &Body{Of: api.ResumeGuest{}, Optional: true},
				Answers:  jsonOf(api.Guest{}),
				Refusals: []int{400, 409},
			},
			serve: plainHandler((*server).resumeGuest),
		},
		{
			Operation: Operation{
				ID: "stepGuest", Method: http.MethodPost, Path: "/v1/guest/step",
				Summary:  "Let a stopped vCPU run a step; the answer says where it has arrived",
				Body:     &Body{Of: api.Step{}},
				Answers:  jsonOf(api.Stepped{}),
				Refusals: []int{400, 404, 409, 422, 501, 504},
			},
			serve: plainHandler((*server).stepGuest),
		},
		{
			Operation: Operation{
				ID: "resetGuest", Method: http.MethodPost, Path: "/v1/guest/reset",
				Summary:  "Boot the guest again, or restore a snapshot, with its probes in place",
				Body:     &Body{Of: api.ResetGuest{}, Optional: true},
				Answers:  jsonOf(api.Guest{}),
				Refusals: []int{400, 404},
			},
			serve: plainHandler((*server).resetGuest),
		},
		{
			Operation: Operation{
				ID: "saveGuest", Method: http.MethodPost, Path: "/v1/guest/save",
				Summary:  "Take a snapshot of the guest and of the probes attached to it; the guest continues, and the daemon keeps the snapshot for resets until the next one",
				Answers:  []Answer{{Status: http.StatusOK, Of: []byte(nil), Media: []string{api.SnapshotType}, Name: "SnapshotFile", Description: "the file"}},
				Refusals: []int{409, 501},
			},
			serve: plainHandler((*server).saveGuest),
		},
		{
			Operation: Operation{
				ID: "giveSnapshot", Method: http.MethodPost, Path: "/v1/snapshots",
				Summary:  "Give the daemon a snapshot for resets; it replaces the one that the daemon keeps",
				Body:     &Body{Of: []byte(nil), Media: api.SnapshotType},
				Answers:  []Answer{{Status: http.StatusCreated, Of: api.Snapshot{}}},
				Refusals: []int{400, 501},
			},
			serve: plainHandler((*server).putSnapshot),
		},
		{
			Operation: Operation{
				ID: "callGuest", Method: http.MethodPost, Path: "/v1/guest/call",
				Summary:  "Run a function of the guest's kernel",
				Body:     &Body{Of: api.Call{}},
				Answers:  jsonOf(api.CallResult{}),
				Refusals: []int{400, 404, 409, 504},
			},
			serve: plainHandler((*server).callGuest),
		},
		{
			Operation: Operation{
				ID: "compareText", Method: http.MethodGet, Path: "/v1/guest/text",
				Summary: "Compare the guest's executable bytes with its image",
				Answers: jsonOf(api.Text{}),
			},
			serve: plainHandler((*server).getText),
		},
		{
			Operation: Operation{
				ID: "readConsole", Method: http.MethodGet, Path: "/v1/guest/console",
				Summary: "Stream the guest's console from the oldest line that is kept",
				Query: []Parameter{
					{Name: "follow", Kind: Flag, Description: "continue until the guest ends", wrong: notBoolean, blank: true},
					{Name: "bytes", Kind: Flag, Description: "continue until the guest ends: after console records of earlier output come output records of everything that it writes, whole lines or not", wrong: notBoolean, blank: true},
				},
				Answers:  []Answer{answerStream},
				Refusals: []int{400, 429},
			},
			serve: (*server).streamConsole,
		},
		{
			Operation: Operation{
				ID: "typeAtConsole", Method: http.MethodPost, Path: "/v1/guest/console",
				Summary:     "Type at the guest's console",
				Description: "Waits up to a second for room. Send again the part that was not taken.",
				Body:        &Body{Of: api.ConsoleInput{}},
				Answers:     jsonOf(api.ConsoleTaken{}),
				Refusals:    []int{400, 409, 501},
			},
			serve: plainHandler((*server).typeConsole),
		},
		{
			Operation: Operation{
				ID: "listSymbols", Method: http.MethodGet, Path: "/v1/symbols",
				Summary: "The names of the guest's image, by address",
				Query: []Parameter{
					{Name: "match", Description: "glob over the whole name: * ? [a-z] [!a-z]"},
					{Name: "kind", Enum: []string{"func", "data", "other"}, blank: true, wrong: "not func, data or other"},
					{Name: "limit", Kind: Number, Min: 1, Max: maxSymbols, Default: defaultSymbols, base: 10, wrong: fmt.Sprintf("not a number from 1 to %d", maxSymbols)},
					queryTypes,
				},
				Answers:  jsonOf(api.SymbolList{}),
				Refusals: []int{400, 501},
			},
			serve: (*server).getSymbols,
		},
		{
			Operation: Operation{
				ID: "listTasks", Method: http.MethodGet, Path: "/v1/tasks",
				Summary: "The processes of a Linux guest, in the order of its kernel's list",
				Query: []Parameter{
					{Name: "threads", Kind: Flag, Description: "list all threads of each", wrong: notTrueOrFalse},
				},
				Answers:  jsonOf(api.TaskList{}),
				Refusals: []int{400, 501},
			},
			serve: (*server).getTasks,
		},
		{
			Operation: Operation{
				ID: "getRegisters", Method: http.MethodGet, Path: "/v1/registers",
				Summary: "The registers of the vCPUs, all of one instant; a running guest is stopped for it and resumes",
				Query: []Parameter{
					{Name: "vcpu", Kind: Number, Description: "only this one", bits: 31, wrong: notNumber},
					{Name: "vectors", Kind: Flag, Description: "with floating point and vector registers", wrong: notTrueOrFalse},
				},
				Answers:  jsonOf(api.RegisterList{}),
				Refusals: []int{400, 501, 504},
			},
			serve: (*server).getRegisters,
		},
		{
			Operation: Operation{
				ID: "setRegisters", Method: http.MethodPut, Path: "/v1/registers",
				Summary:  "Change registers of a vCPU, all that are named or none; the old values are not kept",
				Body:     &Body{Of: api.WriteRegisters{}},
				Answers:  jsonOf(api.Registers{}),
				Refusals: []int{400, 409, 501, 504},
			},
			serve: plainHandler((*server).putRegisters),
		},
		{
			Operation: Operation{
				ID: "getMemory", Method: http.MethodGet, Path: "/v1/memory",
				Summary: "The guest's memory at one instant, as bytes or as a type",
				Query: []Parameter{
					queryAt,
					{Name: "length", Kind: Number, Min: 1, Max: maxLook, Default: defaultLook, Description: "in bytes, 64 without", wrong: fmt.Sprintf("not in 1 to %d", maxLook)},
					queryVCPU,
					queryTask,
					querySpace,
					{Name: "live", Kind: Flag, Description: "with the int3s and jumps of probes in place", wrong: notTrueOrFalse},
					{Name: "type", Description: "as C writes it, optionally followed by .MEMBER, ->MEMBER and [INDEX], which follow pointers; instead of length"},
					{Name: "symbols", Kind: Flag, Description: "list the symbols that words of 8 bytes in it point to", wrong: notTrueOrFalse},
				},
				Answers:  jsonOf(api.Memory{}),
				Refusals: []int{400, 404, 409, 422, 501, 504},
			},
			serve: (*server).getMemory,
		},
		{
			Operation: Operation{
				ID: "setMemory", Method: http.MethodPut, Path: "/v1/memory",
				Summary:  "Write the guest's memory, whatever its page tables allow; refused where probes have their own bytes",
				Body:     &Body{Of: api.WriteMemory{}},
				Answers:  jsonOf(api.Memory{}),
				Refusals: []int{400, 404, 409, 413, 422, 501, 504},
			},
			serve: plainHandler((*server).putMemory),
		},
		{
			Operation: Operation{
				ID: "listBacktraces", Method: http.MethodGet, Path: "/v1/backtraces",
				Summary: "The call stacks of vCPUs or of a task, all of one instant",
				Query: []Parameter{
					{Name: "vcpu", Kind: Number, Description: "only this one", bits: 31, wrong: notNumber},
					{Name: "task", Kind: Number, Description: "this task of a Linux guest", bits: 31, wrong: notNumber},
				},
				Answers:  jsonOf(api.BacktraceList{}),
				Refusals: []int{400, 404, 501, 504},
			},
			serve: (*server).getBacktraces,
		},
		{
			Operation: Operation{
				ID: "walkPageTables", Method: http.MethodGet, Path: "/v1/pagetables",
				Summary:  "The walk of the page tables to an address, entry by entry",
				Query:    []Parameter{queryAt, queryVCPU, queryTask, querySpace},
				Answers:  jsonOf(api.PageWalk{}),
				Refusals: []int{400, 404, 501, 504},
			},
			serve: (*server).getPageWalk,
		},
		{
			Operation: Operation{
				ID: "disassemble", Method: http.MethodGet, Path: "/v1/disas",
				Summary: "A function of the guest's image, with the kind of probe that each of its instructions would get",
				Query: []Parameter{
					{Name: "at", Description: "a symbol, SYMBOL+OFFSET, or an address", Required: true, missing: "say which function: a name, NAME+OFFSET or an address"},
					{Name: "lines", Kind: Flag, Description: "with the source line of each instruction; 501 if the guest has no debug information", wrong: notTrueOrFalse},
				},
				Answers:  jsonOf(api.Disas{}),
				Refusals: []int{400, 404, 422, 501},
			},
			serve: (*server).getDisas,
		},
		{
			Operation: Operation{
				ID: "listVariables", Method: http.MethodGet, Path: "/v1/variables",
				Summary: "The variables in scope at a place of the code, from the guest's debug information",
				Query: []Parameter{
					{Name: "at", Description: "a symbol, SYMBOL+OFFSET, an address, FILE:LINE, or inline:FUNCTION", Required: true, missing: "say where: FUNCTION+OFFSET, FILE:LINE or inline:FUNCTION"},
				},
				Answers:  jsonOf(api.VariableList{}),
				Refusals: []int{400, 404, 422, 501},
			},
			serve: (*server).getVariables,
		},
	}
}
