#include "geometry/pooling.h"

namespace ortrain {

Window read_pool(const NodeContext& c, const Shape& x) {
  const Window window = read_window(c, x);
  for (const WindowAxis& a : window)
    c.expect(a.before < a.span() && a.after < a.span(), "the padding (", a.before, " and ", a.after,
             ") must be smaller than the window, which spans ", counted(a.span(), "element"));
  return window;
}

}  // namespace ortrain
