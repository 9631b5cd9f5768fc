# dygraphs, which draws `pleat report`'s curves: PLEAT_DYGRAPHS_JS and PLEAT_DYGRAPHS_CSS, files of
# this machine's distribution, whatever machine is built for. Where there is none the rest of the
# command is built all the same.
find_file(PLEAT_DYGRAPHS_JS dygraph.min.js
          PATHS /usr/share/javascript/dygraphs /usr/share/javascript/dygraphs/dist
                /usr/share/nodejs/dygraphs/dist NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
find_file(PLEAT_DYGRAPHS_CSS NAMES dygraph.min.css dygraph.css
          PATHS /usr/share/javascript/dygraphs /usr/share/javascript/dygraphs/dist
                /usr/share/nodejs/dygraphs/dist NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
mark_as_advanced(PLEAT_DYGRAPHS_JS PLEAT_DYGRAPHS_CSS)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PleatDygraphs
  REQUIRED_VARS PLEAT_DYGRAPHS_JS PLEAT_DYGRAPHS_CSS
  REASON_FAILURE_MESSAGE "`pleat report` will write no page, tools/setup installs libjs-dygraphs")
