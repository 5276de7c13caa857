package agent

import (
	"fmt"
	"time"
)

func atLeast(key string, d, least time.Duration) error {
	if d < least {
		return fmt.Errorf("%s: %v is too short, the least is %v", key, d, least)
	}
	return nil
}

func atMost(key string, d, most time.Duration) error {
	if d > most {
		return fmt.Errorf("%s: %v is too long, the most is %v", key, d, most)
	}
	return nil
}
