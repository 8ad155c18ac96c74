// Package code is the engine's executable guest memory: what stands at an
// address, who answers for it when a vCPU traps there, and room for more.
package code
