# Files that the command carries with it. pleat_embed(OUT.c NAME=FILE ...) writes, when built, a C
# file that defines `const unsigned char embed_NAME[]`, ended by a zero byte, for each. As a script
# (cmake -D OUT=... -D FILES=... -P) it does that writing.
if(CMAKE_SCRIPT_MODE_FILE)
  set(text "/* Made by PleatEmbed.cmake. */\n#include <tools/report/embed.h>\n")
  foreach(pair IN LISTS FILES)
    string(REGEX MATCH "^([^=]*)=(.*)$" matched "${pair}")
    file(READ "${CMAKE_MATCH_2}" hex HEX)
    set(name ${CMAKE_MATCH_1})
    string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
    string(APPEND text "const unsigned char embed_${name}[] = {\n${hex}0};\n")
  endforeach()
  file(WRITE "${OUT}" "${text}")
  return()
endif()

set(PLEAT_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})
function(pleat_embed out)
  set(files)
  foreach(pair IN LISTS ARGN)
    string(REGEX REPLACE "^[^=]*=" "" file "${pair}")
    list(APPEND files ${file})
  endforeach()
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -D OUT=${out} "-DFILES=${ARGN}" -P ${PLEAT_EMBED_SCRIPT}
    DEPENDS ${files} ${PLEAT_EMBED_SCRIPT} VERBATIM)
endfunction()
