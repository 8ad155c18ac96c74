package http

import (
	"net/http"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// probeRoutes are the routes about probes, scripts and their counts.
func probeRoutes() []route {
	return []route{
		{
			Operation: Operation{
				ID: "listProbes", Method: http.MethodGet, Path: "/v1/probes",
				Summary:  "The attached probes, or the named ones, by number",
				Query:    []Parameter{queryProbes("number, EVENT, GROUP/EVENT, GROUP/, or a pattern of EVENT or GROUP/EVENT; may be repeated; each must match a probe")},
				Answers:  jsonOf(api.ProbeList{}),
				Refusals: []int{400, 404, 409, 429},
			},
			serve: (*server).getProbes,
		},
		{
			Operation: Operation{
				ID: "attachProbes", Method: http.MethodPost, Path: "/v1/probes",
				Summary:  "Attach probes and, by deletions, detach probes; all commands are carried out in order, or none",
				Body:     &Body{Of: api.CreateProbes{}},
				Answers:  []Answer{{Status: http.StatusCreated, Of: api.ProbeList{}}},
				Refusals: []int{400, 404, 409, 413, 422, 429, 501},
			},
			serve: plainHandler((*server).createProbes),
		},
		{
			Operation: Operation{
				ID: "detachProbes", Method: http.MethodDelete, Path: "/v1/probes",
				Summary:  "Detach all probes or the named ones, all or none; the answer has their final counts",
				Query:    []Parameter{queryProbes("as for GET")},
				Answers:  jsonOf(api.ProbeList{}),
				Refusals: []int{400, 404, 409, 429},
			},
			serve: (*server).deleteProbes,
		},
		{
			Operation: Operation{
				ID: "changeProbes", Method: http.MethodPatch, Path: "/v1/probes",
				Summary:  "Change all probes or the named ones, all or none",
				Body:     &Body{Of: api.PatchProbes{}},
				Answers:  jsonOf(api.ProbeList{}),
				Refusals: []int{400, 404, 409, 422, 429},
			},
			serve: plainHandler((*server).patchProbes),
		},
		{
			Operation: Operation{
				ID: "getProbe", Method: http.MethodGet, Path: "/v1/probes/{probe}",
				Summary:  "One probe",
				Answers:  jsonOf(api.Probe{}),
				Refusals: []int{404, 409},
			},
			serve: plainHandler((*server).getProbe),
		},
		{
			Operation: Operation{
				ID: "changeProbe", Method: http.MethodPatch, Path: "/v1/probes/{probe}",
				Summary:  "Change one probe",
				Body:     &Body{Of: api.PatchProbe{}},
				Answers:  jsonOf(api.Probe{}),
				Refusals: []int{400, 404, 409, 422},
			},
			serve: plainHandler((*server).patchProbe),
		},
		{
			Operation: Operation{
				ID: "detachProbe", Method: http.MethodDelete, Path: "/v1/probes/{probe}",
				Summary:  "Detach one probe; the answer has its final counts",
				Answers:  jsonOf(api.Probe{}),
				Refusals: []int{404, 409},
			},
			serve: plainHandler((*server).deleteProbe),
		},
		{
			Operation: Operation{
				ID: "attachPrograms", Method: http.MethodPost, Path: "/v1/programs",
				Summary:  "Attach the eBPF programs of an object file, all or none",
				Body:     &Body{Of: api.AttachProgram{}},
				Answers:  []Answer{{Status: http.StatusCreated, Of: api.ProbeList{}}},
				Refusals: []int{400, 404, 409, 413, 422, 429},
			},
			serve: plainHandler((*server).createPrograms),
		},
		{
			Operation: Operation{
				ID: "uploadFile", Method: http.MethodPost, Path: "/v1/files",
				Summary:  "Give a copy of a file of a Linux guest, or its separate debug information, for the names in its code",
				Body:     &Body{Of: api.GiveFile{}},
				Answers:  jsonOf(api.GivenFile{}),
				Refusals: []int{400, 413, 501},
			},
			serve: plainHandler((*server).giveFile),
		},
		{
			Operation: Operation{
				ID: "startScript", Method: http.MethodPost, Path: "/v1/scripts",
				Summary: "Run a script in bpftrace's language for the life of the stream, or with detach until it is stopped",
				Body: &Body{Of: api.RunScript{}, Examples: []Example{
					{"stream", api.RunScript{Script: "kprobe:vfs_read { @[comm] = hist(arg2); } interval:s:$1 { exit(); }", Args: []string{"10"}}},
					{"detached", api.RunScript{Script: "kprobe:vfs_read { @ = hist(arg2); }", Detach: "reads"}},
				}},
				Answers:  []Answer{answerStream, {Status: http.StatusCreated, Of: api.ScriptInfo{}}},
				Refusals: []int{400, 409, 413, 422, 429},
			},
			serve: plainHandler((*server).runScript),
		},
		{
			Operation: Operation{
				ID: "listScripts", Method: http.MethodGet, Path: "/v1/scripts",
				Summary: "The scripts that run without a client, and the ended ones that were not stopped, by name",
				Answers: []Answer{{Status: http.StatusOK, Of: api.ScriptList{}, Example: exampleScripts}},
			},
			serve: plainHandler((*server).getScripts),
		},
		{
			Operation: Operation{
				ID: "getScript", Method: http.MethodGet, Path: "/v1/scripts/{script}",
				Summary: "One script that runs without a client, with its maps as they are now",
				Query: []Parameter{
					{Name: "format", Enum: []string{"text", "json", "data"}, Description: "the format of maps, by default the script's own; data returns them in states, for clients that add up the maps of several guests", blank: true, wrong: "want text, json or data"},
				},
				Answers:  jsonOf(api.ScriptInfo{}),
				Refusals: []int{400, 404},
			},
			serve: (*server).getScript,
		},
		{
			Operation: Operation{
				ID: "followScript", Method: http.MethodGet, Path: "/v1/scripts/{script}/output",
				Summary:  "Stream its output: the last 4 MiB, which are kept, and then everything until its end",
				Answers:  []Answer{answerStream},
				Refusals: []int{404, 429},
			},
			serve: plainHandler((*server).followScript),
		},
		{
			Operation: Operation{
				ID: "stopScript", Method: http.MethodDelete, Path: "/v1/scripts/{script}",
				Summary:  "Stop it and forget it; the stream has the output of its end",
				Answers:  []Answer{answerStream},
				Refusals: []int{404, 429},
			},
			serve: plainHandler((*server).stopScript),
		},
		{
			Operation: Operation{
				ID: "listPlaces", Method: http.MethodGet, Path: "/v1/places",
				Summary: "Where a script may have probes",
				Query: []Parameter{
					{Name: "match", Default: "*", Description: "as a script names probes, with * ? and [] in the provider and in the rest: kprobe:vfs_*, watchpoint:cpu_*, interval:*, profile:*, vm:exit:*; without a provider it means functions, tracepoints and software events. After struct, union or enum it is a pattern for names of the guest's types: struct task_*", blank: true},
					queryTypes,
				},
				Answers:  jsonOf(api.PlaceList{}),
				Refusals: []int{400, 422, 429, 501},
			},
			serve: (*server).getPlaces,
		},
		{
			Operation: Operation{
				ID: "listMaps", Method: http.MethodGet, Path: "/v1/maps",
				Summary: "The maps of the attached programs, by number",
				Answers: jsonOf(api.MapList{}),
			},
			serve: plainHandler((*server).getMaps),
		},
		{
			Operation: Operation{
				ID: "getCharts", Method: http.MethodGet, Path: "/v1/charts",
				Summary: "The scripts, with and without clients, and the programs of object files whose maps can be drawn, and the maps of one of them as bars",
				Query: []Parameter{
					{Name: "of", Description: "the id of a source; without it the answer has no charts"},
				},
				Answers:  jsonOf(api.ChartList{}),
				Refusals: []int{400, 404},
			},
			serve: (*server).getCharts,
		},
		{
			Operation: Operation{
				ID: "getMap", Method: http.MethodGet, Path: "/v1/maps/{map}",
				Summary:  "The contents of a map",
				Answers:  jsonOf(api.MapDump{}),
				Refusals: []int{404, 409},
			},
			serve: plainHandler((*server).getMap),
		},
		{
			Operation: Operation{
				ID: "listStreams", Method: http.MethodGet, Path: "/v1/events",
				Summary:  "Stream the hits of all probes or of the named ones",
				Query:    []Parameter{queryProbes("as for GET of /v1/probes")},
				Answers:  []Answer{answerStream},
				Refusals: []int{400, 404, 429},
			},
			serve: (*server).streamEvents,
		},
		{
			Operation: Operation{
				ID: "streamEvents", Method: http.MethodPost, Path: "/v1/events",
				Summary:  "Attach probes for the life of the stream, and stream their hits",
				Body:     &Body{Of: api.StreamEvents{}, Optional: true},
				Answers:  []Answer{answerStream},
				Refusals: []int{400, 404, 409, 413, 422, 429, 501},
			},
			serve: (*server).streamEvents,
		},
		{
			Operation: Operation{
				ID: "endStream", Method: http.MethodDelete, Path: "/v1/events/{stream}",
				Summary:  "End a stream: its probes are detached, and it sends its remaining records and its end",
				Answers:  []Answer{{Status: http.StatusNoContent, Description: "the stream is ending"}},
				Refusals: []int{404},
			},
			serve: plainHandler((*server).endStream),
		},
		{
			Operation: Operation{
				ID: "streamSamples", Method: http.MethodPost, Path: "/v1/profile",
				Summary:  "Gather stacks, of samples of the vCPUs or of hits, until a client ends the stream; they are sent then",
				Body:     &Body{Of: api.StreamProfile{}},
				Answers:  []Answer{answerStream},
				Refusals: []int{400, 404, 409, 413, 422, 429, 501},
			},
			serve: plainHandler((*server).streamProfile),
		},
		{
			Operation: Operation{
				ID: "streamRates", Method: http.MethodPost, Path: "/v1/counts",
				Summary:  "Stream the counts of probes and vCPUs: all at once, then the changed ones every interval, until a client ends the stream or the daemon stops",
				Body:     &Body{Of: api.StreamCounts{}, Optional: true},
				Answers:  []Answer{answerStream},
				Refusals: []int{400, 404, 413, 429},
			},
			serve: plainHandler((*server).streamCounts),
		},
		{
			Operation: Operation{
				ID: "checkSource", Method: http.MethodPost, Path: checkPath,
				Summary:  "Check a definition or a script, and attach nothing",
				Body:     &Body{Of: api.Check{}},
				Answers:  []Answer{{Status: http.StatusOK, Of: api.Checked{}, Description: "no error was found, or inAnswer was set and the answer has the error"}},
				Refusals: []int{400, 404, 409, 413, 422, 429},
			},
			serve: plainHandler((*server).check),
		},
		{
			Operation: Operation{
				ID: "openPage", Method: http.MethodPost, Path: "/v1/web",
				Summary:  "Serve the page on loopback, and return an address of it, which works once in one browser",
				Answers:  jsonOf(api.Page{}),
				Refusals: []int{403, 501},
			},
			serve: plainHandler((*server).openPage),
		},
		{
			Operation: Operation{
				ID: "getBlacklist", Method: http.MethodGet, Path: "/v1/blacklist",
				Summary: "The ranges that cannot be probed, and why",
				Answers: jsonOf(api.Blacklist{}),
			},
			serve: plainHandler((*server).getBlacklist),
		},
		{
			Operation: Operation{
				ID: "getArmed", Method: http.MethodGet, Path: "/v1/kprobes/enabled",
				Summary: "Whether probes are armed at all",
				Answers: jsonOf(api.Knobs{}),
			},
			serve: plainHandler((*server).getKnobs),
		},
		{
			Operation: Operation{
				ID: "setArmed", Method: http.MethodPut, Path: "/v1/kprobes/enabled",
				Summary:  "Arm every enabled probe, or disarm all and forget none",
				Body:     &Body{Of: api.Knobs{}},
				Answers:  jsonOf(api.Knobs{}),
				Refusals: []int{400, 422},
			},
			serve: plainHandler((*server).putKnobs),
		},
		{
			Operation: Operation{
				ID: "getOptimization", Method: http.MethodGet, Path: "/v1/kprobes/optimization",
				Summary: "Whether probes become jumps where the code allows it, and the cost of that",
				Answers: jsonOf(api.Optimization{}),
			},
			serve: plainHandler((*server).getOptimization),
		},
		{
			Operation: Operation{
				ID: "changeOptimization", Method: http.MethodPut, Path: "/v1/kprobes/optimization",
				Summary:  "Remove every jump, let the optimizer restore them, or run it now",
				Body:     &Body{Of: api.SetOptimization{}},
				Answers:  jsonOf(api.Optimization{}),
				Refusals: []int{400, 422},
			},
			serve: plainHandler((*server).putOptimization),
		},
		{
			Operation: Operation{
				ID: "getKernelList", Method: http.MethodGet, Path: "/v1/kprobes/list",
				Summary: "The attached probes in the format of the kernel's kprobes/list",
				Answers: []Answer{answerText},
			},
			serve: plainHandler((*server).getKernelList),
		},
		{
			Operation: Operation{
				ID: "getKernelBlacklist", Method: http.MethodGet, Path: "/v1/kprobes/blacklist",
				Summary: "The blacklist in the format of the kernel's kprobes/blacklist",
				Answers: []Answer{answerText},
			},
			serve: plainHandler((*server).getKernelBlacklist),
		},
		{
			Operation: Operation{
				ID: "getKernelProfile", Method: http.MethodGet, Path: "/v1/kprobes/profile",
				Summary: "Hits and misses in the format of the kernel's kprobe_profile",
				Answers: []Answer{answerText},
			},
			serve: plainHandler((*server).getKernelProfile),
		},
	}
}
