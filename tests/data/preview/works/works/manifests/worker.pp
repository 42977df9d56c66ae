class works::worker (
  Works::Limitset $limits,
) inherits works::base {
  ::works::limits { 'worker': limits => $limits }
  queue { 'jobs': depth => 5 }
  File['/etc/stage'] -> Notify['worker']
  $text = find_file('works/worker.txt') ? {
    undef   => 'nothing',
    default => file('works/worker.txt'),
  }
  notify { 'worker': message => $text }
}
