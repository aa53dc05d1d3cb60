#!/usr/bin/perl
# Serve one file: a client may append a line to it (`add TEXT`), and then receives the whole file.
use strict; use warnings; use IO::Socket::INET; $| = 1; $SIG{PIPE} = 'IGNORE';
my ($port, $file) = @ARGV;
my $server = IO::Socket::INET->new(LocalPort => $port, Listen => 5, ReuseAddr => 1) or die "port $port: $!";
print "serving $file on $port\n";
while (my $client = $server->accept) {
  my $line = <$client> // "";
  if ($line =~ /^add (.*)/) { open(my $out, '>>', $file) or die "$file: $!"; print $out "$1\n"; close $out; }
  if (open(my $in, '<', $file)) { print $client $_ while <$in>; close $in; }
  close $client;
}
