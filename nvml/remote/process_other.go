//go:build !linux

package remote

import "syscall"

// sysProcAttr is empty: elsewhere the end of stdin alone tells the helper that the agent is gone.
func sysProcAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
