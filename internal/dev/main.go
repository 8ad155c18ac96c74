package dev

import "github.com/guestprobe/guestprobe/internal/command"

// Main is gpdev. It returns the exit status.
func Main() int { return command.Main(Program()) }

// Program describes gpdev's command line.
func Program() command.Program {
	return command.Program{
		Spec: command.Spec{
			Use:   "gpdev",
			Short: "Measure, soak and document guestprobe",
			Long: `gpdev has the tools for developers of guestprobe: benchmarks, the soak test,
generated guests, random programs in a guest, and the documents that are generated
from runs.`,
			Example: `  gpdev bench --no-peers
  gpdev soak --duration 10m --vcpus 8`,
			Sub: []command.Spec{benchSpec(), soakSpec(), tortureSpec(), programsSpec(), hostsSpec(), noticeSpec(), manSpec(), sbomSpec(), openapiSpec(), btsuiteSpec()},
		},
		HelpExamples: "  gpdev help soak",
	}
}
