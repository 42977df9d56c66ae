class tools {
  notify { 'tools': }
}
