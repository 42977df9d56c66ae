class extra {
  notify { 'extra': }
}
