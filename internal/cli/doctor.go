package cli

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	daemon "github.com/guestprobe/guestprobe/internal/server/http"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func doctorCommand() command.Spec {
	var kvm string
	return command.Spec{
		Local: true,
		Use:   "doctor",
		Short: "Find out what this host's KVM delivers",
		Long: `Find out, by running a small guest, how this host's KVM delivers breakpoints,
single steps, execute breakpoints and watchpoints, in guest kernel code (CPL0)
and in guest user code (CPL3). It needs no daemon. Without a usable /dev/kvm it
says why and what to do; the exit status is then 1.`,
		Flags: func(f *pflag.FlagSet) { f.StringVar(&kvm, "kvm", "", "KVM `device` (default /dev/kvm)") },
		Run: func(ctx context.Context, r *command.Run) error {
			report, err := host.Calibrate(ctx, kvm)
			h := daemon.WireHost(report)
			if err != nil && h.KVM.Reason == "" {
				h.KVM.Usable, h.KVM.Reason = false, err.Error()
			}
			if err := r.Show(h, func() error { return printHost(r, h) }); err != nil || h.KVM.Usable {
				return err
			}
			return &doctorError{h.KVM.Reason}
		},
	}
}

// doctorError says why KVM is not usable. It wraps no other error, so the exit status of
// doctor is 1 for all reasons.
type doctorError struct{ reason string }

// Error returns the reason.
func (e *doctorError) Error() string { return e.reason }

func printHost(r *command.Run, h api.Host) error {
	if !h.KVM.Usable {
		return nil
	}
	vendor := ""
	if h.KVM.Vendor != "" {
		vendor = ", CPU " + command.Clean(h.KVM.Vendor)
	}
	if err := r.Print("%s: usable, API %d%s, up to %s\n\n", h.KVM.Path, h.KVM.API, vendor, command.Plural(h.KVM.MaxVCPUs, "vCPU")); err != nil {
		return err
	}
	if err := r.Print("daemons are confined by: %s\n\n", h.Jail); err != nil {
		return err
	}
	k, u := h.Traps.CPL0, h.Traps.CPL3
	if err := r.Table([]string{"TRAP", "CPL0", "CPL3", "USED FOR"}, [][]string{
		{"int3", k.Int3, u.Int3, "probes"},
		{"step", k.Step, u.Step, "instructions that cannot be moved"},
		{"hwbreak", k.HWBreak, u.HWBreak, "execute watches"},
		{"watch", k.Watch, u.Watch, "data watches"},
	}); err != nil {
		return err
	}
	linux := "yes"
	if h.NoLinux != "" {
		linux = "no: " + command.Clean(h.NoLinux)
	}
	return r.Print("\nLinux guests: %s\n", linux)
}
