# @summary Says hello: the sample of the README.
#
# @param message
#   What to say.
class foo (
  String[1] $message = 'I notify you!',
) {
  notify { $message: }
}
