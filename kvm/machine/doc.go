// Package machine puts kvm, guest and probe together: it boots a guest, runs its vCPUs, turns their exits into traps for the probe engine, and stops the world.
package machine
