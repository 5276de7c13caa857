package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tpotscope/tpotscope/correlate/scenario"
)

// helpWidth is what every help text fits in.
const helpWidth = 80

// usage marks an error as one of usage and points to the help.
func usage(cmd *cobra.Command, err error) error {
	return &exitStatus{exitUsage, fmt.Errorf("%w\nsee: %s --help", err, cmd.CommandPath())}
}

func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usage(cmd, err)
		}
		return nil
	}
}

// one takes one argument, which what names with its forms.
func one(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return fmt.Errorf("%s needs %s", cmd.Name(), what)
		case 1:
			if args[0] == "" {
				return fmt.Errorf("%s needs %s", cmd.Name(), what)
			}
			return nil
		}
		return fmt.Errorf("%s takes one argument, and got %d: %s", cmd.Name(), len(args), strings.Join(args, " "))
	}
}

// aRun is what commands need that read a recording.
const aRun = "a RUN: a directory, @last, @prev or @NAME"

// none takes no argument.
func none(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no argument, and got %q", cmd.Name(), args[0])
	}
	return nil
}

var (
	unknownFlag = regexp.MustCompile(`^unknown flag: --(\S+)$`)
	badFlag     = regexp.MustCompile(`^invalid argument "(.*)" for "(?:-\w, )?(--\S+)" flag: (.*)$`)
	noFlagValue = regexp.MustCompile(`^flag needs an argument: (?:'.' in )?(\S+)$`)
)

// flagError says a complaint about a flag in words that help: the nearest flag, the form of the value.
func flagError(cmd *cobra.Command, err error) error {
	if m := unknownFlag.FindStringSubmatch(err.Error()); m != nil {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := nearest(m[1], names); near != "" {
			err = fmt.Errorf("%w (did you mean --%s?)", err, near)
		}
	}
	if m := badFlag.FindStringSubmatch(err.Error()); m != nil {
		cause := strings.TrimPrefix(m[3], "strconv.")
		f := cmd.Flags().Lookup(strings.TrimPrefix(m[2], "--"))
		if f != nil && f.Value.Type() == "duration" {
			cause = "is no duration: want one such as 90s, 5m or 1h30m"
		}
		err = fmt.Errorf("%s: %q %s", m[2], m[1], cause)
	}
	if m := noFlagValue.FindStringSubmatch(err.Error()); m != nil {
		err = fmt.Errorf("%s needs a value", m[1])
	}
	return usage(cmd, err)
}

// needFlags returns an error of usage if one of the flags was not given.
func needFlags(cmd *cobra.Command, names ...string) error {
	var missing []string
	for _, name := range names {
		if !cmd.Flags().Changed(name) {
			missing = append(missing, "--"+name)
		}
	}
	if len(missing) > 0 {
		return usage(cmd, fmt.Errorf("%s needs %s", cmd.Name(), strings.Join(missing, " and ")))
	}
	return nil
}

// positive returns an error of usage if a duration was given and is no length of time.
func positive(cmd *cobra.Command, name string) error {
	if !cmd.Flags().Changed(name) {
		return nil
	}
	if d, err := cmd.Flags().GetDuration(name); err != nil || d <= 0 {
		return usage(cmd, fmt.Errorf("--%s: %v is no length of time: want one such as 90s", name, d))
	}
	return nil
}

// groupOnly is what a command does that only holds others.
func groupOnly(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(cmd, unknownCommand(cmd, args[0]))
	}
	return cmd.Help()
}

func unknownCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if near := nearest(name, names); near != "" {
		return fmt.Errorf("there is no command %q (did you mean %q?)", name, near)
	}
	return fmt.Errorf("there is no command %q", name)
}

// helpCommand prints the help of a command, or says that there is none of that name.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "help on a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			switch {
			case err != nil:
				return usage(cmd.Root(), err)
			case len(rest) > 0 && (of.HasSubCommands() || !of.Runnable()):
				return usage(of, unknownCommand(of, rest[0]))
			case len(rest) > 0:
				return usage(of, fmt.Errorf("%s has no commands below it", of.CommandPath()))
			}
			of.InitDefaultHelpFlag()
			return of.Help()
		},
	}
}

// wrapHelp makes the help of cmd and of all below it fit.
func wrapHelp(cmd *cobra.Command) {
	cmd.SetUsageTemplate(strings.ReplaceAll(cmd.UsageTemplate(), "FlagUsages ", fmt.Sprintf("FlagUsagesWrapped %d ", helpWidth)))
}

// wrap breaks text into lines that fit, each with the indent before it.
func wrap(text, indent string) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
			b.WriteString(indent)
			column = len(indent)
		case column+1+len(word) > helpWidth:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}

// scenarios are the names of the shipped scenarios, for help texts.
func scenarios() string { return strings.Join(scenario.Library(), ", ") }

// nvmlHelp is the help of every --nvml.
func nvmlHelp() string {
	return "where counters come from: helper, off, or sim:NAME, which is SIMULATED and labelled so everywhere; " +
		"NAME is a scenario file or one of " + scenarios()
}
