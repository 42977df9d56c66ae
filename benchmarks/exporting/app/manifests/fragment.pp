# A part of a file.
define app::fragment(String $target, Integer $order, String $content) {
  notify { "${target} ${order} ${content}": }
}
