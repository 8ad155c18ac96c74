package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/daemon"
	"github.com/guestprobe/guestprobe/kvm/machine"
)

func (a *app) doctorCmd() *cobra.Command {
	var kvm string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what this host's KVM delivers",
		Long: `Find out, by running a small guest, how this host's KVM delivers breakpoints,
single steps, execute breakpoints and watchpoints, in guest kernel code (CPL0)
and in guest user code (CPL3). It needs no daemon. Without a usable /dev/kvm it
says why and what to do; the exit status is then 1.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.wantFormat(); err != nil {
				return err
			}
			report, err := machine.Calibrate(cmd.Context(), kvm)
			h := daemon.WireHost(report)
			if err != nil && h.KVM.Reason == "" {
				h.KVM.Usable, h.KVM.Reason = false, err.Error()
			}
			if a.format == "json" {
				if err := a.printJSON(h); err != nil {
					return err
				}
			} else if h.KVM.Usable {
				if err := a.printHost(h); err != nil {
					return err
				}
			}
			if h.KVM.Usable {
				return nil
			}
			return &doctorError{h.KVM.Reason}
		},
	}
	cmd.Flags().StringVar(&kvm, "kvm", "", "KVM `device` (default /dev/kvm)")
	return cmd
}

// doctorError says why KVM is not usable. It wraps nothing: the exit status of
// doctor is 1 for all reasons.
type doctorError struct{ reason string }

// Error is the reason.
func (e *doctorError) Error() string { return e.reason }

func (a *app) printHost(h api.Host) error {
	fmt.Fprintf(a.env.Stdout, "%s: usable, API %d", h.KVM.Path, h.KVM.API)
	if h.KVM.Vendor != "" {
		fmt.Fprintf(a.env.Stdout, ", CPU %s", clean(h.KVM.Vendor))
	}
	fmt.Fprintf(a.env.Stdout, ", up to %s\n\n", plural(h.KVM.MaxVCPUs, "vCPU"))
	k, u := h.Traps.CPL0, h.Traps.CPL3
	return a.table([]string{"TRAP", "CPL0", "CPL3", "USED FOR"}, [][]string{
		{"int3", k.Int3, u.Int3, "probes"},
		{"step", k.Step, u.Step, "instructions that cannot be moved"},
		{"hwbreak", k.HWBreak, u.HWBreak, "execute watches"},
		{"watch", k.Watch, u.Watch, "data watches"},
	})
}
