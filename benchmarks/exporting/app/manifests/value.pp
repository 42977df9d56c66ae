# Values of every kind.
define app::value(
  $whole = 0,
  $fraction = 0,
  $truth = true,
  $nothing = 'default',
  $list = [],
  $mapping = {},
  $refers = undef,
  $refers2 = undef,
) {
  notify { "${title}: ${whole} ${fraction} ${truth} ${nothing} ${list} ${mapping} ${refers}": }
}
