// Package code manages the engine's executable guest memory: its contents, the
// resident that handles a vCPU trapping at an address, and free room.
package code
