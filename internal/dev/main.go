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
			Long: `gpdev has what those who work on guestprobe need and its users do not: benchmarks,
the soak, made-up guests, random programs in a guest, and the documents that are
made of runs.`,
			Example: `  gpdev bench --no-peers
  gpdev soak --duration 10m --vcpus 8`,
			Sub: []command.Spec{benchSpec(), soakSpec(), tortureSpec(), programsSpec(), hostsSpec(), noticeSpec(), manSpec(), sbomSpec(), openapiSpec()},
		},
		HelpExamples: "  gpdev help soak",
	}
}
